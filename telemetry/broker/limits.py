"""What a broker accepts: the limits of its CONNACK, and packets after which it ends connections.

MQTT 5 brokers announce limits (MQTT 5.0, section 3.2.2.3). Brokers of 3.1.1 do not, and some of
MQTT 5 enforce more than they announce: they end the connection at a packet that is too large. A
client that sends the packet again on each connection is cut off again and again. Pure.

Topic Alias Maximum needs no attention: this client uses no topic alias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from telemetry.messages.envelope import BadMessageError

LOSSES = 3
"""Connections in a row that end while a packet is in question: the broker does not take it."""
SOON_S = 4.0
"""A broker ends the connection within this time of a packet that it does not take."""
FLOOR_BYTES = 4096
"""Packets up to this size are never in question: all brokers in use take them."""
HOLD_S = (60.0, 3600.0)
"""How long a packet is held back that ended connections: at first, and at most (doubled)."""
MOST_IN_FLIGHT = 20
"""Unacknowledged messages that the MQTT library sends, if the broker allows no fewer."""


NO_RETAIN, QOS_NOT_SUPPORTED = 0x9A, 0x9B
_UNUSABLE = {
    0: "",
    NO_RETAIN: "the broker retains nothing (Retain Available 0): no state would be kept",
    QOS_NOT_SUPPORTED: "the broker takes QoS 0 only (Maximum QoS 0): "
    "no message would be acknowledged",
}


def unusable(reason_code: int) -> str:
    """What a refused CONNECT says of a broker's limits; "": it was refused for another reason."""
    return _UNUSABLE.get(reason_code, "")


class PacketTooLargeError(BadMessageError):
    """The broker does not take a packet of this size.

    Attributes:
        size: of the packet, in bytes.
        limit: what the broker takes, in bytes.
        announced: the broker said so; else it is concluded from connections that ended.
    """

    def __init__(self, size: int, limit: int, *, announced: bool) -> None:
        if announced:
            text = f"{size} B, and the broker takes packets of {limit} B at most"
        else:
            text = (
                f"{size} B, and the broker ended {LOSSES} connections at such a packet; "
                f"the largest that it took then had {limit} B"
            )
        super().__init__(text)
        self.size, self.limit, self.announced = size, limit, announced


@dataclass(frozen=True)
class BrokerLimits:
    """What one connection's CONNACK announced. None: no limit.

    Attributes:
        packet_bytes: Maximum Packet Size: of a whole control packet, its header included.
        in_flight: Receive Maximum: unacknowledged PUBLISHes.
        qos: Maximum QoS.
        retain: Retain Available.
        keepalive_s: Server Keep Alive; 0: the broker never misses a client.
        session_s: Session Expiry Interval; None: as asked.
    """

    packet_bytes: int | None = None
    in_flight: int = 65_535
    qos: int = 2
    retain: bool = True
    keepalive_s: int | None = None
    session_s: int | None = None

    @classmethod
    def of_connack(cls, properties: object) -> BrokerLimits:
        """Read the properties of a CONNACK: attributes by their names, absent where not sent."""

        def value(name: str, default: Any) -> Any:  # noqa: ANN401 - as the library has it
            return getattr(properties, name, default)

        return cls(
            value("MaximumPacketSize", None),
            value("ReceiveMaximum", 65_535),
            value("MaximumQoS", 2),
            bool(value("RetainAvailable", 1)),
            value("ServerKeepAlive", None),
            value("SessionExpiryInterval", None),
        )

    @property
    def unusable(self) -> str:
        """Why this broker cannot carry the control fabric; "": it can."""
        return _UNUSABLE[QOS_NOT_SUPPORTED if self.qos < 1 else 0 if self.retain else NO_RETAIN]

    def keepalive(self, own_s: int) -> int:
        """Seconds between our packets: ``own_s`` or less, so that a dead connection is noticed."""
        return min(own_s, self.keepalive_s or own_s)

    def notes(self, own_s: int, session_s: int | None) -> list[str]:
        """What people should know of the limits; one sentence each.

        Args:
            own_s: the keepalive that was asked for.
            session_s: the session expiry that was asked for; None: none was.
        """
        found = []
        if self.packet_bytes is not None:
            found.append(f"The broker takes packets of {self.packet_bytes} B at most.")
        if self.in_flight < MOST_IN_FLIGHT:
            found.append(f"The broker takes {self.in_flight} unacknowledged messages at most.")
        if self.keepalive_s == 0:
            found.append("The broker's keepalive is 0: it reports no client as lost.")
        elif self.keepalive_s is not None and self.keepalive_s > own_s:
            found.append(
                f"The broker's keepalive is {self.keepalive_s} s, not {own_s} s: "
                f"it reports a lost client after {1.5 * self.keepalive_s:g} s."
            )
        if session_s is not None and self.session_s is not None and self.session_s < session_s:
            found.append(
                f"The broker keeps a session for {self.session_s} s, not {session_s} s: "
                "events of a longer absence are lost."
            )
        return found


def publish_bytes(topic: str, payload: bytes, *, five: bool) -> int:
    """Size of a PUBLISH with QoS 1 and without properties, in bytes (MQTT 5.0, section 3.3)."""
    return _with_header(2 + len(topic.encode()) + 2 + five + len(payload))


def subscribe_bytes(filters: list[str], *, five: bool) -> int:
    """Size of a SUBSCRIBE without properties, in bytes (MQTT 5.0, section 3.8)."""
    return _with_header(2 + five + sum(2 + len(name.encode()) + 1 for name in filters))


def _with_header(remaining: int) -> int:
    return 1 + max(1, (remaining.bit_length() + 6) // 7) + remaining


@dataclass(frozen=True)
class _InFlight:
    size: int
    sent_s: float


class PacketSizes:
    """Which packets the broker takes, over all connections of one client. ``now``: monotonic s.

    A packet is in question when the connection ended within `SOON_S` of its sending, before its
    acknowledgement, and it is larger than all that the connection acknowledged. After `LOSSES`
    such ends in a row packets of its size are held back for a while. The next such packet after it
    is one more try.
    """

    def __init__(self) -> None:
        self.announced: int | None = None
        """Maximum Packet Size of the present connection."""
        self.refused: int | None = None
        """Packets of this size and more ended connections, and are held back."""
        self._until_s = 0.0
        self._hold_s = HOLD_S[0]
        self._acknowledged = self._taken = 0
        """The largest packet acknowledged on this connection, and on the one of the verdict."""
        self._doubts: list[int] = []
        """Of the last connections: the largest packet in question when they ended."""
        self._in_flight: dict[object, _InFlight] = {}

    def connected(self, announced: int | None) -> None:
        """A connection begins, with this Maximum Packet Size."""
        self.announced, self._acknowledged = announced, 0

    def check(self, size: int, now: float) -> None:
        """Raises `PacketTooLargeError`: the broker does not take a packet of ``size`` bytes."""
        if self.announced is not None and size > self.announced:
            raise PacketTooLargeError(size, self.announced, announced=True)
        if self.refused is None:
            return
        if now >= self._until_s:
            # One more end is enough to hold it back again, for longer.
            self._doubts = [self.refused] * (LOSSES - 1)
            self.refused, self._hold_s = None, min(2 * self._hold_s, HOLD_S[1])
        elif size >= self.refused:
            raise PacketTooLargeError(size, self._taken, announced=False)

    def sent(self, key: object, size: int, now: float) -> None:
        """A packet is under way."""
        self._in_flight[key] = _InFlight(size, now)

    def answered(self, key: object) -> None:
        """The broker acknowledged a packet, or refused it alone: it took its size."""
        packet = self._in_flight.pop(key, None)
        if packet is None:
            return
        self._acknowledged = max(self._acknowledged, packet.size)
        if self._doubts and packet.size >= min(self._doubts):
            self._doubts, self._hold_s = [], HOLD_S[0]

    def lost(self, now: float) -> set[object]:
        """The connection ended, and not by us; returns the keys of the packets in question."""
        flying, self._in_flight = self._in_flight, {}
        least = max(self._acknowledged, FLOOR_BYTES)
        sizes = {
            key: packet.size for key, packet in flying.items()
            if packet.size > least and now - packet.sent_s <= SOON_S
        }  # fmt: skip
        if not sizes:
            return set()  # It ended for another reason: neither for nor against.
        self._doubts.append(max(sizes.values()))
        if len(self._doubts) >= LOSSES:
            self.refused, self._until_s = min(self._doubts), now + self._hold_s
            self._taken, self._doubts = self._acknowledged, []
        return set(sizes)
