"""Messages of IEEE 1588-2019 as bytes: what a unicast client says and hears.

Clause 13 has the messages, 14.1 the TLVs, 16.1 unicast negotiation. All numbers are big-endian.
Messages that a client has no use for (peer delay, management) are refused; unknown TLVs are skipped
(14.1.1).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

VERSION: Final = 2
"""versionPTP; any minorVersionPTP is heard (13.3.2.3)."""
MINOR_VERSION: Final = 1
HEADER: Final = struct.Struct(">BBHBBHqI8sHHBb")
"""13.3.1, table 35."""
_STAMP: Final = struct.Struct(">HII")
_PORT: Final = struct.Struct(">8sH")
_ANNOUNCE: Final = struct.Struct(">hxBBBHB8sHB")
_TLV: Final = struct.Struct(">HH")
UNICAST_INTERVAL: Final = 0x7F
"""logMessageInterval of unicast messages (13.3.2.14)."""
_SCALE: Final = 65536
_CONTROL: Final = {0: 0, 1: 1, 8: 2, 9: 3}
_MOST_CORRECTION: Final = 2**63 - 2**10
"""Beyond that it is the mark for "too large" (13.3.2.9), or becomes it as a float."""
_MOST_BYTES: Final = 1500
LATEST: Final = 2**62
"""Nanoseconds since 1970; clock pages have 63 bits for them."""


class PtpError(Exception):
    """These bytes are no message for a unicast client; the text says why."""


class Type(IntEnum):
    """messageType (13.3.2.3, table 36)."""

    SYNC = 0x0
    DELAY_REQ = 0x1
    FOLLOW_UP = 0x8
    DELAY_RESP = 0x9
    ANNOUNCE = 0xB
    SIGNALING = 0xC


class Flag(IntFlag):
    """flagField (13.3.2.8, table 37), its first octet as the higher one."""

    ALTERNATE_MASTER = 0x0100
    TWO_STEP = 0x0200
    UNICAST = 0x0400
    LEAP_61 = 0x0001
    LEAP_59 = 0x0002
    UTC_OFFSET_VALID = 0x0004
    PTP_TIMESCALE = 0x0008
    TIME_TRACEABLE = 0x0010
    FREQUENCY_TRACEABLE = 0x0020
    UNCERTAIN = 0x0040


NO_FLAGS: Final = Flag(0)


class PortIdentity(NamedTuple):
    """A port of a clock (7.5.2)."""

    clock: bytes
    """clockIdentity, 8 bytes."""
    port: int


ANY_PORT: Final = PortIdentity(b"\xff" * 8, 0xFFFF)
"""All ones: whoever gets it (13.12.1)."""


@dataclass(frozen=True, slots=True)
class Header:
    """What every message begins with (13.3)."""

    source: PortIdentity
    sequence: int
    domain: int = 0
    flags: Flag = NO_FLAGS
    correction_ns: float = 0.0
    """correctionField; beyond ±2⁴⁷ ns it is unusable (13.3.2.9) and refused."""
    interval: int = UNICAST_INTERVAL
    """logMessageInterval."""
    sdo: int = 0
    """majorSdoId (transportSpecific of 2008) and minorSdoId, 12 bits."""
    minor_version: int = MINOR_VERSION


@dataclass(frozen=True, slots=True)
class Sync:
    """13.6; the time is that of transmission, or near it if a Follow_Up is to come."""

    header: Header
    origin_ns: int


@dataclass(frozen=True, slots=True)
class DelayReq:
    """13.6."""

    header: Header
    origin_ns: int = 0


@dataclass(frozen=True, slots=True)
class FollowUp:
    """13.7."""

    header: Header
    origin_ns: int


@dataclass(frozen=True, slots=True)
class DelayResp:
    """13.8."""

    header: Header
    received_ns: int
    requester: PortIdentity


@dataclass(frozen=True, slots=True)
class Announce:
    """13.5: what the grandmaster is, and how far away."""

    header: Header
    utc_offset_s: int
    """TAI less UTC, if the flags say so."""
    priority1: int
    clock_class: int
    accuracy: int
    variance: int
    """offsetScaledLogVariance."""
    priority2: int
    grandmaster: bytes
    """Its clockIdentity."""
    steps_removed: int
    time_source: int = 0xA0
    """7.6.2.8; the default is internalOscillator."""


class Request(NamedTuple):
    """REQUEST_UNICAST_TRANSMISSION (16.1.4.1)."""

    type: int
    interval: int
    """logInterMessagePeriod."""
    duration_s: int


class Grant(NamedTuple):
    """GRANT_UNICAST_TRANSMISSION (16.1.4.2); denied with a duration of 0."""

    type: int
    interval: int
    duration_s: int
    renewal: bool = True


class Cancel(NamedTuple):
    """CANCEL_UNICAST_TRANSMISSION (16.1.4.3)."""

    type: int


class Acknowledge(NamedTuple):
    """ACKNOWLEDGE_CANCEL_UNICAST_TRANSMISSION (16.1.4.4)."""

    type: int


Tlv = Request | Grant | Cancel | Acknowledge
_REQUEST, _GRANT, _CANCEL, _ACKNOWLEDGE = 4, 5, 6, 7
_TLVS: Final = {
    _REQUEST: struct.Struct(">BbI"),
    _GRANT: struct.Struct(">BbIxB"),
    _CANCEL: struct.Struct(">Bx"),
    _ACKNOWLEDGE: struct.Struct(">Bx"),
}


@dataclass(frozen=True, slots=True)
class Signaling:
    """13.12."""

    header: Header
    target: PortIdentity
    tlvs: tuple[Tlv, ...] = field(default=())


Message = Sync | DelayReq | FollowUp | DelayResp | Announce | Signaling
_TYPES: Final[dict[type, Type]] = {
    Sync: Type.SYNC, DelayReq: Type.DELAY_REQ, FollowUp: Type.FOLLOW_UP,
    DelayResp: Type.DELAY_RESP, Announce: Type.ANNOUNCE, Signaling: Type.SIGNALING,
}  # fmt: skip


def encode(message: Message) -> bytes:
    """The message as it travels."""
    match message:
        case Sync() | DelayReq() | FollowUp():
            body = _stamp(message.origin_ns)
        case DelayResp():
            body = _stamp(message.received_ns) + _PORT.pack(*message.requester)
        case Announce():
            body = _stamp(0) + _ANNOUNCE.pack(
                message.utc_offset_s, message.priority1, message.clock_class, message.accuracy,
                message.variance, message.priority2, message.grandmaster, message.steps_removed,
                message.time_source,
            )  # fmt: skip
        case _:
            body = _PORT.pack(*message.target) + b"".join(map(_tlv, message.tlvs))
    head, kind = message.header, _TYPES[type(message)]
    return (
        HEADER.pack(
            (head.sdo >> 8) << 4 | kind, head.minor_version << 4 | VERSION,
            HEADER.size + len(body), head.domain, head.sdo & 0xFF, head.flags,
            round(head.correction_ns * _SCALE), 0, head.source.clock, head.source.port,
            head.sequence, _CONTROL.get(kind, 5), head.interval,
        )
        + body
    )  # fmt: skip


def decode(data: bytes) -> Message:
    """The inverse of `encode`.

    Args:
        data: of a UDP datagram; what follows messageLength is padding (annex C, annex D).

    Raises:
        PtpError: of another version, cut short, not for a client, or what cannot be.
    """
    if len(data) < HEADER.size:
        raise PtpError(f"{len(data)} bytes are no message")
    (first, version, length, domain, minor_sdo, flags, correction, _, clock, port, sequence, _,
     interval) = HEADER.unpack_from(data)  # fmt: skip
    if version & 0xF != VERSION:
        raise PtpError(f"version {version & 0xF}")
    if not HEADER.size <= length <= min(len(data), _MOST_BYTES):
        raise PtpError(f"says that it has {length} bytes, of {len(data)}")
    if abs(correction) > _MOST_CORRECTION:
        raise PtpError("a correction that is too large to be said")
    head = Header(
        PortIdentity(clock, port), sequence, domain, Flag(flags), correction / _SCALE, interval,
        (first >> 4) << 8 | minor_sdo, version >> 4,
    )  # fmt: skip
    body = data[HEADER.size : length]
    kind = first & 0xF
    try:
        return _body(kind, head, body)
    except struct.error as error:
        raise PtpError(f"message of type {kind:#x} cut short at {length} bytes") from error


def _body(kind: int, head: Header, body: bytes) -> Message:
    match kind:
        case Type.SYNC:
            return Sync(head, _nanoseconds(body))
        case Type.DELAY_REQ:
            return DelayReq(head, _nanoseconds(body))
        case Type.FOLLOW_UP:
            return FollowUp(head, _nanoseconds(body))
        case Type.DELAY_RESP:
            return DelayResp(
                head, _nanoseconds(body), PortIdentity(*_PORT.unpack_from(body, _STAMP.size))
            )
        case Type.ANNOUNCE:
            _nanoseconds(body)
            return Announce(head, *_ANNOUNCE.unpack_from(body, _STAMP.size))
        case Type.SIGNALING:
            target = PortIdentity(*_PORT.unpack_from(body))
            return Signaling(head, target, _parse_tlvs(body[_PORT.size :]))
        case _:
            raise PtpError(f"message of type {kind:#x} is not for a client")


def _stamp(ns: int) -> bytes:
    seconds, rest = divmod(ns, 10**9)
    return _STAMP.pack(seconds >> 32, seconds & 0xFFFFFFFF, rest)


def _nanoseconds(body: bytes) -> int:
    """A Timestamp (5.3.3)."""
    high, low, rest = _STAMP.unpack_from(body)
    if rest >= 10**9:
        raise PtpError(f"{rest} nanoseconds of a second")
    ns = int((high << 32 | low) * 10**9 + rest)
    if ns > LATEST:
        raise PtpError("a time after the year 2116")
    return ns


def _tlv(tlv: Tlv) -> bytes:
    kind, values = {
        Request: (_REQUEST, tlv), Grant: (_GRANT, tlv), Cancel: (_CANCEL, tlv),
        Acknowledge: (_ACKNOWLEDGE, tlv),
    }[type(tlv)]  # fmt: skip
    return _TLV.pack(kind, _TLVS[kind].size) + _TLVS[kind].pack(values[0] << 4, *values[1:])


def _parse_tlvs(data: bytes) -> tuple[Tlv, ...]:
    found: list[Tlv] = []
    while data:
        kind, length = _TLV.unpack_from(data)
        value, data = data[_TLV.size : _TLV.size + length], data[_TLV.size + length :]
        if len(value) != length or length % 2:
            raise PtpError(f"a TLV of {length} bytes, of {len(value)}")
        if kind not in _TLVS:
            continue
        first, *rest = _TLVS[kind].unpack_from(value)
        match kind:
            case 4:
                found.append(Request(first >> 4, *rest))
            case 5:
                found.append(Grant(first >> 4, rest[0], rest[1], bool(rest[2] & 1)))
            case 6:
                found.append(Cancel(first >> 4))
            case _:
                found.append(Acknowledge(first >> 4))
    return tuple(found)
