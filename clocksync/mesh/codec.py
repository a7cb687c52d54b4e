"""Messages of clock services as they travel: 32 bytes, little-endian; the first says which. Pure.

Bounds are rounded up, never down, and stay where they are when they are passed on.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from functools import lru_cache
from typing import Final

from clocksync.mesh.messages import (
    MOST_BOUND,
    MOST_HALF,
    AsymmetryReport,
    ClockMessage,
    Mesh,
    MeshId,
    Origin,
    Phc,
    Reference,
    Time,
    Trace,
)
from clocksync.page.outbox import SIZE
from clocksync.pair.crossing import MOST_SLOPE

_SLOPE: Final = 2.0**42
_PART: Final = 2.0**32
_SMALL_PART: Final = 2.0**16
_LATEST: Final = 2**61
"""73 years; the sum of two such still fits where times are told."""


class ClockMessageError(Exception):
    """These bytes are no message; the text says why."""


class Kind(IntEnum):
    """The first byte."""

    MESH = 1
    TIME = 2
    REFERENCE = 3
    MESH_ID = 4
    PHC = 5
    TRACE = 6
    ORIGIN = 7


_LAYOUT: Final[dict[int, struct.Struct]] = {
    Kind.MESH: struct.Struct("<BBHiqqII"),
    Kind.TIME: struct.Struct("<BBHfqqfI"),
    Kind.REFERENCE: struct.Struct("<BBHIqqiHH"),
    Kind.MESH_ID: struct.Struct("<BBHIqQIf"),
    Kind.PHC: struct.Struct("<BBeiqqIeH"),
    Kind.TRACE: struct.Struct("<BBHIqqiHH"),
    Kind.ORIGIN: struct.Struct("<BBHIqhHBBxxQ"),
}
_FLOAT: Final = struct.Struct("<f")
_BOUND_STEPS: Final = 512
"""Of a power of two: 16 bits of them reach past a day."""
_DRIFT_STEPS: Final = 4
_ROOT_STEPS: Final = 8
_UTC_KNOWN, _TRACEABLE, _LEAP_UP, _LEAP_DOWN, _HELD = 1, 2, 4, 8, 16
_ACCUSED: Final = struct.Struct("<If")


def _slope(value: float) -> int:
    return max(-(2**31), min(2**31 - 1, round(value * _SLOPE)))


def _root(ns: float) -> int:
    """A byte on a scale of eighths of a power of two: up to 4 s."""
    return 0 if ns <= 0 else max(1, min(255, _steps_up(max(ns, 1.0), _ROOT_STEPS)))


def _steps_up(value: float, steps: int) -> int:
    """Where it stands on a scale of so many steps a power of two, rounded up.

    What was rounded stays where it is: a logarithm that is a hair above a step is at it. Otherwise
    a bound that many hosts pass on would grow by a step at each.
    """
    return math.ceil(math.log2(value) * steps - 1e-6)


def _float_up(value: float) -> float:
    """What 32 bits say of it is no less than it is; those of a float are rounded to the nearest."""
    said: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return said if said >= value else value * (1 + 2.0**-23)


def encode(message: ClockMessage) -> bytes:
    """The message as it travels. Slopes beyond ±488 ppm are cut to that."""
    match message:
        case Mesh():
            return _LAYOUT[Kind.MESH].pack(
                Kind.MESH, _root(message.root_ns), message.tag, _slope(message.slope),
                message.raw_ns, message.mesh_ns, int(message.part * _PART), message.reference,
            )  # fmt: skip
        case Time():
            return _LAYOUT[Kind.TIME].pack(
                Kind.TIME, message.term & 0xFF, message.tag, _float_up(message.bound_ns),
                message.raw_ns, message.fabric_ns, _float_up(message.drift), message.reference,
            )  # fmt: skip
        case Reference():
            return _LAYOUT[Kind.REFERENCE].pack(
                Kind.REFERENCE, message.priority, message.tag, message.id, message.mesh_ns,
                message.ahead_ns, _slope(message.slope), int(message.part * _SMALL_PART),
                message.term,
            )  # fmt: skip
        case MeshId():
            founded = message.founded_ns
            return _LAYOUT[Kind.MESH_ID].pack(
                Kind.MESH_ID, 0, message.tag, message.founder, founded, 0, 0, 0.0
            )
        case Phc():
            return _LAYOUT[Kind.PHC].pack(
                Kind.PHC, message.generation & 0xFF, message.half_ns, _slope(message.slope),
                message.raw_ns, message.phc_ns, message.link, message.spread_ns,
                int(message.part * _SMALL_PART),
            )  # fmt: skip
        case Trace():
            bound = _steps_up(max(message.bound_ns, 1.0), _BOUND_STEPS)
            least = 2.0 ** (-255 / _DRIFT_STEPS)
            drift = -_steps_up(min(max(message.drift, least), 1.0), _DRIFT_STEPS)
            return _LAYOUT[Kind.TRACE].pack(
                Kind.TRACE, drift, message.tag, message.id, message.fabric_ns, message.ahead_ns,
                _slope(message.slope), min(bound, 0xFFFF), message.under,
            )  # fmt: skip
        case Origin():
            flags = (
                _UTC_KNOWN * (message.utc_offset_s is not None) | _TRACEABLE * message.traceable
                | _LEAP_UP * (message.leap > 0) | _LEAP_DOWN * (message.leap < 0)
                | _HELD * (not message.tracking)
            )  # fmt: skip
            return _LAYOUT[Kind.ORIGIN].pack(
                Kind.ORIGIN, message.clock_class, message.tag, message.id, message.fabric_ns,
                message.utc_offset_s or 0, message.steps_removed, flags, message.accuracy,
                message.grandmaster,
            )  # fmt: skip
        case AsymmetryReport():
            data = encode(message.mesh_id)
            return data[: -_ACCUSED.size] + _ACCUSED.pack(message.mark, message.surplus_ns)


@lru_cache(maxsize=1024)
def decode(data: bytes) -> ClockMessage:
    """The inverse of `encode`. What many neighbours pass on is decoded once.

    Raises:
        ClockMessageError: it is of another kind, or says what cannot be.
    """
    if len(data) != SIZE or data[0] not in _LAYOUT:
        raise ClockMessageError(f"no message: {data[:8].hex()}")
    if data[0] == Kind.PHC:
        return _decode_phc(data)
    _, byte, tag, first, one, other, *rest = _LAYOUT[data[0]].unpack(data)
    if tag == 0 or abs(one) > _LATEST or abs(other) > _LATEST:
        raise ClockMessageError("a time that is none")
    match data[0]:
        case Kind.MESH:
            root = 2.0 ** (byte / _ROOT_STEPS) if byte else 0.0
            return Mesh(tag, one, other, rest[0] / _PART, first / _SLOPE, rest[1], root)
        case Kind.TIME:
            if not (0 <= first <= MOST_BOUND and 0 <= rest[0] < 1):
                raise ClockMessageError("a bound that is none")
            return Time(tag, rest[1], byte, one, other, first, rest[0])
        case Kind.REFERENCE:
            part = rest[1] / _SMALL_PART
            return Reference(tag, byte, first, rest[2], one, other, part, rest[0] / _SLOPE)
        case Kind.TRACE:
            bound, drift = 2.0 ** (rest[1] / _BOUND_STEPS), 2.0 ** (-byte / _DRIFT_STEPS)
            if bound > MOST_BOUND:
                # 16 bits reach to 2^128 ns, and a page that said so would be none to its readers.
                raise ClockMessageError("a bound that is none")
            return Trace(tag, first, one, other, rest[0] / _SLOPE, bound, drift, rest[2])
        case Kind.ORIGIN:
            steps, flags, accuracy, grandmaster = rest
            leap = bool(flags & _LEAP_UP) - bool(flags & _LEAP_DOWN)
            return Origin(
                tag, first, one, grandmaster, byte, accuracy, steps,
                other if flags & _UTC_KNOWN else None, bool(flags & _TRACEABLE), leap,
                not flags & _HELD,
            )  # fmt: skip
        case _:  # MESH_ID
            mesh_id = MeshId(first, max(one, 0))
            if one < 0 or mesh_id.tag != tag:
                raise ClockMessageError("a mesh whose tag is another's")
            mark, surplus = rest
            if not mark:
                return mesh_id
            if not abs(surplus) <= MOST_BOUND:
                raise ClockMessageError("a surplus that is none")
            return AsymmetryReport(mesh_id, mark, surplus)


def _decode_phc(data: bytes) -> Phc:
    _, generation, half, slope, raw, ns, link, spread, part = _LAYOUT[Kind.PHC].unpack(data)
    if abs(raw) > _LATEST or abs(ns) > _LATEST:
        raise ClockMessageError("a time that is none")
    if not (0 < half <= MOST_HALF or half == math.inf) or not (0 <= spread <= MOST_HALF):
        raise ClockMessageError("a bound that is none")
    if abs(slope / _SLOPE) > MOST_SLOPE:
        raise ClockMessageError("a rate that no clock has")
    return Phc(link, generation, raw, ns, part / _SMALL_PART, slope / _SLOPE, half, spread)
