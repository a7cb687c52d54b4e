"""What the clock services of neighbours tell each other, 32 bytes at a time.

The probers carry the messages with the packets of their clock paths, a message a packet, and look
at nothing but whether there is one. How they travel is in `clocksync.mesh.codec`.

=========  ======================================================================================
MESH       where mesh time lies over the sender's clock
TIME       fabric time by the sender's clock, and its bound
REFERENCE  who gives fabric time, and how far it is ahead of mesh time; passed on from host to host
MESH_ID    which mesh the sender is in: who began it, and when; and which path is asymmetric
PHC        where the clock of the NIC lies over the sender's clock, on the paths of that NIC
TRACE      how far TAI is ahead of fabric time, by a host with a PTP master; passed on as REFERENCE
ORIGIN     whose time TAI is by that host: the grandmaster, and what it says of itself
=========  ======================================================================================

All but PHC bear a ``tag`` of two bytes, which is that of the sender's MESH_ID: messages of another
mesh speak of another time.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from clocksync.pair.crossing import MEMORY_NS, PhcLine
from clocksync.pair.linear import Linear

MOST_BOUND: Final = 1e18
MOST_DRIFT: Final = 0.5
"""What may be off by more and more so fast is no time, and not said."""
MOST_HALF: Final = 60_000.0
"""What 16 bits of a float can say, nearly."""


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


class MeshId(NamedTuple):
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
    """8 bits; see `clocksync.pair.crossing.PhcLine`."""
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


class AsymmetryReport(NamedTuple):
    """A MESH_ID message that also says which path's two ways differ (`clocksync.mesh.asymmetry`).

    Older hosts take it for a MESH_ID.
    """

    mesh_id: MeshId
    mark: int
    """Of the path (`clocksync.mesh.ecmp_rerouter.path_mark`), not 0."""
    surplus_ns: float
    """As the sender sees it."""


def phc(link: int, generation: int, line: PhcLine | None) -> Phc:
    """The message of a crossing, or that there is none now."""
    if line is None:
        return Phc(link, generation & 0xFF, 0, 0, 0.0, 0.0, math.inf, 0.0)
    at, ns, part, slope = line.line
    half, spread = min(1.001 * line.half_ns + 1, MOST_HALF), min(line.spread_ns, MOST_HALF)
    return Phc(link, generation & 0xFF, at, ns, part, slope, half, spread)


def link_id(address: str) -> int:
    """32 bits of an address, by which a PHC's message names the link that it is of.

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
    """Whose time a TRACE is; the fields of IEEE 1588's Announce."""

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


ClockMessage = Mesh | Time | Reference | MeshId | Phc | Trace | Origin | AsymmetryReport
