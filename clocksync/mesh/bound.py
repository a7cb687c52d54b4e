"""How far fabric time may be off, host by host. Pure.

The bound does not rest on the mesh. A neighbour says fabric time within its bound; seen through a
path it is known within that path's bound (`Pair.bound_ns`); how far our own time is from that adds
up. The best neighbour counts. By induction over the hosts, the reference's time is within it,
whatever the mesh makes of things. Without neighbours what was known last grows by what the clocks
may have drifted, and by what we moved our own time since.

Neighbours who cannot all be right all count: the bound takes in whatever any of them says. One of
them has a clock that was set, and does not know it yet; which one it is nobody can tell (Marzullo,
"Maintaining the Time in a Distributed System", 1984, leaves out whom most disagree with).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from clocksync.mesh.messages import Reference
from clocksync.pair.linear import Linear


class Known(NamedTuple):
    """Of whose time, and how well."""

    at_ns: int
    """Our clock: as of when."""
    bound_ns: float
    drift: float
    """By so much a nanosecond more later."""
    reference: int
    term: int
    """Of the reference, its low byte."""


class Observation(NamedTuple):
    """Fabric time by a neighbour, seen through a path, at one moment."""

    theirs: Linear
    """Over our clock, from that moment on."""
    bound_ns: float
    """Of neighbour and path together."""
    drift: float
    reference: int
    term: int


class _Claim(NamedTuple):
    """The reference's time lies within ``bound_ns`` of so much ahead of ours."""

    off_ns: float
    bound_ns: float
    drift: float


def _within(claims: list[_Claim]) -> tuple[float, float]:
    """How far off our time is by them, and by how much a nanosecond that grows."""
    first = max([off - bound for off, bound, _ in claims])
    last = min([off + bound for off, bound, _ in claims])
    far = [(abs(off) + bound, drift) for off, bound, drift in claims]
    if first <= last:
        return min(far)
    return max(bound for bound, _ in far), max(drift for _, drift in far)


@dataclass(slots=True)
class BoundKeeper:
    """Of one host."""

    wander: float
    """Most by which two clocks' rates part within a nanosecond."""
    known: Known | None = None
    _was: Linear | None = None
    """Our fabric time when ``known`` was made."""

    def forget(self) -> None:
        """Our time is another one."""
        self.known = self._was = None

    def grown(self, bound_ns: float, drift: float, age_ns: float) -> float:
        """A bound, that much later."""
        return bound_ns + (drift + self.wander * age_ns / 2) * age_ns

    def faster(self, drift: float, age_ns: float) -> float:
        """How fast it grows by then: rates wander on."""
        return drift + self.wander * age_ns

    def of_reference(self, fabric: Linear, said: Reference, off_ns: float = 0.0) -> Known:
        """We are the reference: our time is right; others see it by stamps so far off at most."""
        self.known = Known(fabric.at_ns, off_ns, 0.0, said.id, said.term & 0xFF)
        self._was = fabric
        return self.known

    def look(self, fabric: Linear, said: Reference, sights: Iterable[Observation]) -> Known | None:
        """What is known as of ``fabric.at_ns``; None: nothing.

        A new reference's time takes some steps to get here. Until then the bound is that of the
        one before, whose time the new one goes on with.
        """
        now = fabric.at_ns
        wanted = said.id, said.term & 0xFF
        said_of: dict[tuple[int, int], list[_Claim]] = {}
        if self.known is not None and self._was is not None:
            at, bound, drift, *whose = self.known
            moved = abs(self._was.moved(now).ahead(now, fabric.ns) - fabric.part)
            # Our line may run at another rate now than when its drift was known.
            drift += abs(self._was.slope - fabric.slope)
            bound = self.grown(bound, drift, now - at) + moved
            claim = _Claim(0.0, bound, self.faster(drift, now - at))
            said_of.setdefault((whose[0], whose[1]), []).append(claim)
        _, ns, part, slope = fabric
        for theirs, bound, drift, *whose in sights:
            off = theirs.ahead(now, ns) - part
            claim = _Claim(off, bound, drift + abs(theirs.slope - slope))
            said_of.setdefault((whose[0], whose[1]), []).append(claim)
        key = wanted
        if key not in said_of and self.known is not None:
            key = self.known.reference, self.known.term
        if key not in said_of:
            return None
        self.known = Known(now, *_within(said_of[key]), *key)
        self._was = fabric
        return self.known
