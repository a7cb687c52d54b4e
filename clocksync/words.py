"""What the clock services of neighbours tell each other, 32 bytes at a time.

The probers carry the words with the packets of their clock paths, a word a packet, and look at
nothing but whether there is one. Little-endian; the first byte says what it is:

=========  ======================================================================================
MESH       where mesh time lies over the sender's clock
TIME       fabric time by the sender's clock, and its bound
REFERENCE  who gives fabric time, and how far it is ahead of mesh time; passed on from host to host
GAUGE      which mesh the sender is in: who began it, and when; and which path it accuses
PHC        where the clock of the NIC lies over the sender's clock, on the paths of that NIC
TRACE      how far TAI is ahead of fabric time, by a host with a PTP master; passed on as REFERENCE
ORIGIN     whose time TAI is by that host: the grandmaster, and what it says of itself
=========  ======================================================================================

All but PHC bear a ``tag`` of two bytes, which is that of the sender's GAUGE: words of another mesh
speak of another time.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import struct
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from clocksync.crossing import MEMORY_NS, MOST_SLOPE, PhcLine
from clocksync.latch import Kind, LatchFile, seal
from clocksync.linear import Linear

SIZE: Final = 32
MOST: Final = 8
"""Words for all paths; each link may have one more, for its own."""
LINKS: Final = 32
KIND: Final = Kind("words", magic=0x44574346, version=2, record=16 + (MOST + LINKS) * SIZE)
_SLOPE: Final = 2.0**42
_PART: Final = 2.0**32
_SMALL_PART: Final = 2.0**16
_LATEST: Final = 2**61
"""73 years; the sum of two such still fits where times are told."""
MOST_BOUND: Final = 1e18
MOST_DRIFT: Final = 0.5
"""What may be off by more and more so fast is no time, and not said."""


class WordError(Exception):
    """These bytes are no word; the text says why."""


class Mesh(NamedTuple):
    """Mesh time as a line over the sender's clock."""

    tag: int
    raw_ns: int
    """The sender's clock: a moment."""
    mesh_ns: int
    """Mesh time at it."""
    part: float
    """And so much more: a part of a nanosecond, in [0, 1)."""
    slope: float
    """Mesh nanoseconds per nanosecond of the sender's clock, less one."""
    reference: int
    """Id of the host whose time the sender follows; 0: nobody's."""
    root_ns: float = 0.0
    """Root delay: the least round trip to that host along the mesh, to a tenth; 0: not known."""


class Time(NamedTuple):
    """Fabric time as the sender has it."""

    tag: int
    reference: int
    term: int
    """Of the reference, its low byte."""
    raw_ns: int
    """The sender's clock: a moment."""
    fabric_ns: int
    """Fabric time at it."""
    bound_ns: float
    """How far off that may be."""
    drift: float
    """And by so much a nanosecond more later."""


class Reference(NamedTuple):
    """A host that gives fabric time."""

    tag: int
    priority: int
    """The smaller, the better."""
    id: int
    term: int
    """Counts references of this mesh, so that one can be told from an earlier one of the same id;
    16 bits."""
    mesh_ns: int
    """When it said so, in mesh time: how old that is, every host can tell."""
    ahead_ns: int
    """Fabric time less mesh time at that moment."""
    part: float
    slope: float
    """How fast that grows, ns/ns."""


@lru_cache(maxsize=256)
def _tag(founder: int, founded_ns: int) -> int:
    text = struct.pack("<IQ", founder, founded_ns)
    return int.from_bytes(hashlib.blake2s(text, digest_size=2).digest(), "little") or 1


class Gauge(NamedTuple):
    """A mesh: hosts whose mesh times are one."""

    founder: int
    founded_ns: int
    """Mesh time at which it began: by the wall clock of the host that began it."""

    @property
    def tag(self) -> int:
        """Two bytes that tell it from others; never 0."""
        return _tag(self.founder, self.founded_ns)


class Phc(NamedTuple):
    """The clock of the sender's NIC, which makes its stamps."""

    link: int
    """Of which NIC: `link_id` of its address on the path."""
    generation: int
    """8 bits; see `clocksync.crossing.PhcLine`."""
    raw_ns: int
    """The sender's clock: a moment."""
    phc_ns: int
    """The NIC's clock at it."""
    part: float
    slope: float
    """Nanoseconds of the NIC's clock per nanosecond of the sender's, less one."""
    half_ns: float
    """Infinite: there is no crossing now, since it was set or adjusted just now."""
    spread_ns: float

    @property
    def line(self) -> PhcLine | None:
        """As the crossing that it is; what the rate is off by follows from scatter and memory."""
        if math.isinf(self.half_ns):
            return None
        origin = Linear(self.raw_ns, self.phc_ns, self.part, self.slope)
        turned = self.spread_ns * math.sqrt(12) / MEMORY_NS
        return PhcLine(origin, self.half_ns, self.spread_ns, turned, self.generation)


class Accused(NamedTuple):
    """A GAUGE word that also says which path's two ways differ (`clocksync.asymmetry`).

    Older hosts take it for a GAUGE.
    """

    gauge: Gauge
    mark: int
    """Of the path (`clocksync.moves.path_mark`), not 0."""
    surplus_ns: float
    """As the sender sees it."""


def phc(link: int, generation: int, line: PhcLine | None) -> Phc:
    """The word of a crossing, or that there is none now."""
    if line is None:
        return Phc(link, generation & 0xFF, 0, 0, 0.0, 0.0, math.inf, 0.0)
    at, ns, part, slope = line.line
    half, spread = min(1.001 * line.half_ns + 1, _MOST_HALF), min(line.spread_ns, _MOST_HALF)
    return Phc(link, generation & 0xFF, at, ns, part, slope, half, spread)


def link_id(address: str) -> int:
    """32 bits of an address, by which a PHC's word names the link that it is of.

    Raises:
        ValueError: it is no address.
    """
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    return int.from_bytes(hashlib.blake2s(packed, digest_size=4).digest(), "little")


class Trace(NamedTuple):
    """How far TAI is ahead of fabric time."""

    tag: int
    id: int
    """Of the host that has it from a master."""
    fabric_ns: int
    """Fabric time when it said so."""
    ahead_ns: int
    """TAI less fabric time at that moment."""
    slope: float
    """How fast that grows, ns/ns."""
    bound_ns: float
    """How far off that may be; travels rounded up by less than a part in 500."""
    drift: float
    """And by so much a nanosecond more later; rounded up by a fifth at most."""
    under: int
    """Which reference's fabric time it is: `under` of its id and term."""


class Origin(NamedTuple):
    """Whose time a TRACE is; the words of IEEE 1588's Announce."""

    tag: int
    id: int
    """Of the host that has it."""
    fabric_ns: int
    """Fabric time when it said so."""
    grandmaster: int
    """Its clockIdentity, as a number."""
    clock_class: int
    accuracy: int
    steps_removed: int
    utc_offset_s: int | None
    """TAI less UTC; None: not known."""
    traceable: bool
    """To a primary reference."""
    leap: int
    """At the end of the day: +1 or -1 second, or 0."""
    tracking: bool = True
    """False: its master is silent, and what it had is held over."""


@lru_cache(maxsize=256)
def under(reference: int, term: int) -> int:
    """Two bytes that stand for a reference; ``term``: its low byte."""
    text = struct.pack("<IB", reference, term & 0xFF)
    return int.from_bytes(hashlib.blake2s(text, digest_size=2).digest(), "little")


Word = Mesh | Time | Reference | Gauge | Phc | Trace | Origin | Accused
_MESH, _TIME, _REFERENCE, _GAUGE, _PHC, _TRACE, _ORIGIN = 1, 2, 3, 4, 5, 6, 7
_MOST_HALF: Final = 60_000.0
"""What 16 bits of a float can say, nearly."""
_LAYOUT: Final = {
    _MESH: struct.Struct("<BBHiqqII"),
    _TIME: struct.Struct("<BBHfqqfI"),
    _REFERENCE: struct.Struct("<BBHIqqiHH"),
    _GAUGE: struct.Struct("<BBHIqQIf"),
    _PHC: struct.Struct("<BBeiqqIeH"),
    _TRACE: struct.Struct("<BBHIqqiHH"),
    _ORIGIN: struct.Struct("<BBHIqhHBBxxQ"),
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


def encode(word: Word) -> bytes:
    """The word as it travels. Slopes beyond ±488 ppm are cut to that."""
    match word:
        case Mesh():
            return _LAYOUT[_MESH].pack(
                _MESH, _root(word.root_ns), word.tag, _slope(word.slope), word.raw_ns, word.mesh_ns,
                int(word.part * _PART), word.reference,
            )  # fmt: skip
        case Time():
            return _LAYOUT[_TIME].pack(
                _TIME, word.term & 0xFF, word.tag, _float_up(word.bound_ns), word.raw_ns,
                word.fabric_ns, _float_up(word.drift), word.reference,
            )  # fmt: skip
        case Reference():
            return _LAYOUT[_REFERENCE].pack(
                _REFERENCE, word.priority, word.tag, word.id, word.mesh_ns, word.ahead_ns,
                _slope(word.slope), int(word.part * _SMALL_PART), word.term,
            )  # fmt: skip
        case Gauge():
            founded = word.founded_ns
            return _LAYOUT[_GAUGE].pack(_GAUGE, 0, word.tag, word.founder, founded, 0, 0, 0.0)
        case Phc():
            return _LAYOUT[_PHC].pack(
                _PHC, word.generation & 0xFF, word.half_ns, _slope(word.slope), word.raw_ns,
                word.phc_ns, word.link, word.spread_ns, int(word.part * _SMALL_PART),
            )  # fmt: skip
        case Trace():
            bound = _steps_up(max(word.bound_ns, 1.0), _BOUND_STEPS)
            least = 2.0 ** (-255 / _DRIFT_STEPS)
            drift = -_steps_up(min(max(word.drift, least), 1.0), _DRIFT_STEPS)
            return _LAYOUT[_TRACE].pack(
                _TRACE, drift, word.tag, word.id, word.fabric_ns, word.ahead_ns,
                _slope(word.slope), min(bound, 0xFFFF), word.under,
            )  # fmt: skip
        case Origin():
            flags = (
                _UTC_KNOWN * (word.utc_offset_s is not None) | _TRACEABLE * word.traceable
                | _LEAP_UP * (word.leap > 0) | _LEAP_DOWN * (word.leap < 0)
                | _HELD * (not word.tracking)
            )  # fmt: skip
            return _LAYOUT[_ORIGIN].pack(
                _ORIGIN, word.clock_class, word.tag, word.id, word.fabric_ns,
                word.utc_offset_s or 0, word.steps_removed, flags, word.accuracy, word.grandmaster,
            )  # fmt: skip
        case Accused():
            data = encode(word.gauge)
            return data[: -_ACCUSED.size] + _ACCUSED.pack(word.mark, word.surplus_ns)


@lru_cache(maxsize=1024)
def decode(data: bytes) -> Word:
    """The inverse of `encode`. What many neighbours pass on is decoded once.

    Raises:
        WordError: it is of another kind, or says what cannot be.
    """
    if len(data) != SIZE or data[0] not in _LAYOUT:
        raise WordError(f"no word: {data[:8].hex()}")
    if data[0] == _PHC:
        return _decode_phc(data)
    _, byte, tag, first, one, other, *rest = _LAYOUT[data[0]].unpack(data)
    if tag == 0 or abs(one) > _LATEST or abs(other) > _LATEST:
        raise WordError("a time that is none")
    match data[0]:
        case 1:
            root = 2.0 ** (byte / _ROOT_STEPS) if byte else 0.0
            return Mesh(tag, one, other, rest[0] / _PART, first / _SLOPE, rest[1], root)
        case 2:
            if not (0 <= first <= MOST_BOUND and 0 <= rest[0] < 1):
                raise WordError("a bound that is none")
            return Time(tag, rest[1], byte, one, other, first, rest[0])
        case 3:
            part = rest[1] / _SMALL_PART
            return Reference(tag, byte, first, rest[2], one, other, part, rest[0] / _SLOPE)
        case 6:
            bound, drift = 2.0 ** (rest[1] / _BOUND_STEPS), 2.0 ** (-byte / _DRIFT_STEPS)
            if bound > MOST_BOUND:
                # 16 bits reach to 2^128 ns, and a page that said so would be none to its readers.
                raise WordError("a bound that is none")
            return Trace(tag, first, one, other, rest[0] / _SLOPE, bound, drift, rest[2])
        case 7:
            steps, flags, accuracy, grandmaster = rest
            leap = bool(flags & _LEAP_UP) - bool(flags & _LEAP_DOWN)
            return Origin(
                tag, first, one, grandmaster, byte, accuracy, steps,
                other if flags & _UTC_KNOWN else None, bool(flags & _TRACEABLE), leap,
                not flags & _HELD,
            )  # fmt: skip
        case _:
            gauge = Gauge(first, max(one, 0))
            if one < 0 or gauge.tag != tag:
                raise WordError("a mesh whose tag is another's")
            mark, surplus = rest
            if not mark:
                return gauge
            if not abs(surplus) <= MOST_BOUND:
                raise WordError("a surplus that is none")
            return Accused(gauge, mark, surplus)


def _decode_phc(data: bytes) -> Phc:
    _, generation, half, slope, raw, ns, link, spread, part = _LAYOUT[_PHC].unpack(data)
    if abs(raw) > _LATEST or abs(ns) > _LATEST:
        raise WordError("a time that is none")
    if not (0 < half <= _MOST_HALF or half == math.inf) or not (0 <= spread <= _MOST_HALF):
        raise WordError("a bound that is none")
    if abs(slope / _SLOPE) > MOST_SLOPE:
        raise WordError("a rate that no clock has")
    return Phc(link, generation, raw, ns, part / _SMALL_PART, slope / _SLOPE, half, spread)


class WordPage:
    """Where the prober of this host finds what it is to tell (``fabric/clock_words.h``)."""

    def __init__(self, directory: Path) -> None:
        """Take over the page that is there, or make one; ``directory``: the prober's.

        Raises:
            OSError: it cannot be written.
        """
        self._file = LatchFile(KIND, directory, _record([], {}))

    def write(self, words: Sequence[bytes], links: Mapping[int, bytes] | None = None) -> None:
        """Have these told, from now on and for a second.

        Args:
            words: at most `MOST`, on all paths.
            links: one more for the paths of some links, by the prober's index.
        """
        self._file.write(_record(words, links or {}))

    def close(self) -> None:
        """Let go of it; the prober stops telling after a second."""
        self._file.close()


def _record(words: Sequence[bytes], links: Mapping[int, bytes]) -> bytes:
    if len(words) > MOST:
        raise ValueError(f"{len(words)} words, not {MOST} at most")
    data = b"".join(words).ljust(MOST * SIZE, b"\0")
    data += b"".join(links.get(index, bytes(SIZE)) for index in range(LINKS))
    return seal(struct.pack("<QQ", 0, time.monotonic_ns()) + data)
