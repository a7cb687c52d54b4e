"""As much of MQTT 5 (OASIS, 2019) as a host's connection needs. Pure: bytes only.

fabricd's own client costs ten times as much CPU: 2,000 of them on two cores would measure it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ = 1, 2, 3, 4, 8, 9, 12
_MAXIMUM_PACKET_SIZE = 0x27
_WILL_QOS1_RETAIN_CLEAN = 0b0010_1110


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _packet(first: int, body: bytes) -> bytes:
    size, left = bytearray(), len(body)
    while True:
        left, low = divmod(left, 128)
        size.append(low | (0x80 if left else 0))
        if not left:
            return bytes([first]) + bytes(size) + body


def connect(client_id: str, topic: str, will: bytes, keepalive_s: int, most_bytes: int) -> bytes:
    """CONNECT with a clean start and a retained last will of QoS 1."""
    properties = bytes([5, _MAXIMUM_PACKET_SIZE]) + most_bytes.to_bytes(4, "big")
    return _packet(
        CONNECT << 4,
        _text("MQTT") + bytes([5, _WILL_QOS1_RETAIN_CLEAN]) + keepalive_s.to_bytes(2, "big")
        + properties + _text(client_id) + b"\0" + _text(topic)
        + len(will).to_bytes(2, "big") + will,
    )  # fmt: skip


def publish(topic: str, payload: bytes, number: int) -> bytes:
    """PUBLISH, QoS 1, retained. ``number``: packet identifier."""
    return _packet(
        PUBLISH << 4 | 0b0011, _text(topic) + number.to_bytes(2, "big") + b"\0" + payload
    )


def subscribe(filters: Sequence[tuple[str, int]], number: int) -> bytes:
    """SUBSCRIBE to (filter, QoS) pairs."""
    body = b"".join(_text(name) + bytes([qos]) for name, qos in filters)
    return _packet(SUBSCRIBE << 4 | 0b0010, number.to_bytes(2, "big") + b"\0" + body)


def puback(number: int) -> bytes:
    """PUBACK, success."""
    return _packet(PUBACK << 4, number.to_bytes(2, "big"))


def pingreq() -> bytes:
    """PINGREQ."""
    return _packet(PINGREQ << 4, b"")


class Packets:
    """Splits what arrives into packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(type, flags, body) of each whole packet."""
        self._buffer += data
        at = 0
        while (found := _header(self._buffer, at)) is not None:
            start, end = found
            if end > len(self._buffer):
                break
            first = self._buffer[at]
            at_body, at = start, end
            yield first >> 4, first & 0xF, bytes(self._buffer[at_body:end])
        del self._buffer[:at]


def _header(buffer: bytearray, at: int) -> tuple[int, int] | None:
    """Begin and end of the body of the packet at ``at``; None: not known yet."""
    size = 0
    for digit in range(4):
        where = at + 1 + digit
        if where >= len(buffer):
            return None
        size |= (buffer[where] & 0x7F) << 7 * digit
        if buffer[where] < 0x80:
            return where + 1, where + 1 + size
    raise ValueError("no MQTT")


def reason_code(body: bytes) -> int:
    """Of a CONNACK: 0 means that it is accepted."""
    return body[1]


def published(flags: int, body: bytes) -> tuple[str, int, bytes]:
    """Topic, packet identifier (0 with QoS 0) and payload of a PUBLISH."""
    size = int.from_bytes(body[:2], "big")
    topic, at, number = body[2 : 2 + size].decode(), 2 + size, 0
    if flags >> 1 & 3:
        number, at = int.from_bytes(body[at : at + 2], "big"), at + 2
    properties, end = 0, at
    for digit in range(4):
        properties |= (body[end] & 0x7F) << 7 * digit
        end += 1
        if body[end - 1] < 0x80:
            break
    return topic, number, body[end + properties :]
