"""Straight line between two clouds of one-way delays: how far a peer's clock is from ours. Pure.

Each probe packet gives one point. A packet of ours to the peer: ``receive stamp (peer) - transmit
stamp (ours)`` = offset + delay there, so it lies *above* the offset by the delay. A packet of the
peer's: ``transmit stamp (peer) - receive stamp (ours)`` = offset - delay back, *below* it. Delays
are never less than the wire's and now and then just that, so the offset runs midway between the
lower edge of the upper cloud and the upper edge of the lower one.

Huygens (Geng et al., NSDI 2018) finds that line with a support vector machine. Here an edge is the
mean of the lowest share ``nu`` of its cloud (the conditional value at risk, Rockafellar and Uryasev
2000), and the slope is the one with which the two edges are furthest apart. That distance is
concave in the slope and its derivative is a difference of two means, so bisection finds the best
slope with a partial sort of each cloud a step. The offset then lies midway between where those
shares end (the quantiles): their means reach for outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_SLOPE = 500e-6
"""Of two crystals, and one of them slewed as fast as the kernel lets NTP: past it something else is
being fitted."""
ENOUGH_SLOPE = 1e-11
"""How well the slope is found: 0.02 ns over a window of 2 s."""
FIRST_BRACKET = 1e-8
"""How far from the guess the slope is looked for at first; widened tenfold until it is inside."""
FEWEST = 8
"""Points of a cloud that a line is fitted to."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """The points of one direction of a path in a window."""

    at_s: Floats
    """Shape (n,): our clock in seconds since an origin within the window."""
    ns: Floats
    """Shape (n,): the peer's clock minus ours as the packet shows it, less a base that both clouds
    of a window share (so that what is left fits a float)."""


@dataclass(frozen=True, slots=True)
class Line:
    """The peer's clock minus ours, as a line over our clock."""

    offset_ns: float
    """At the clouds' origin, less their base."""
    slope: float
    """Nanoseconds per nanosecond: positive when the peer's clock is the faster one."""
    half_rtt_ns: float
    """Half of what lies between the edges: the delay of each direction if both are alike, and the
    most that the offset is wrong by if they are not."""
    spread_ns: float
    """Standard error of the offset at ``middle_s`` from the scatter of the points of both edges."""
    middle_s: float
    """Where the points lie on average that the line rests on."""
    span_s: float
    """From the first to the last of them."""


def share(points: int, nu: float) -> int:
    """How many of so many points make an edge; at least two."""
    return min(points, max(2, math.ceil(nu * points)))


def fit(upper: Cloud, lower: Cloud, nu: tuple[float, float], guess: float = 0.0) -> Line | None:
    """The line between the clouds.

    Args:
        upper: our packets to the peer.
        lower: the peer's packets to us.
        nu: share of the points that make an edge, of the upper and the lower cloud, in (0, 1]. It
            should be the same part of the packets that met no queue: were it 0.02 of all where half
            of one cloud is queued, one edge would be a fiftieth into its clean packets and the
            other a twenty-fifth, and the line would lie between unlike things.
        guess: slope of the window before; it saves work and changes nothing else.

    Returns:
        None when a cloud has fewer than ``FEWEST`` points, or the best slope is beyond
        ``MOST_SLOPE``.
    """
    if min(len(upper.ns), len(lower.ns)) < FEWEST:
        return None
    # Mirrored, the lower cloud is a second upper one whose slope has the other sign.
    sides = (
        _Edge(upper.at_s, upper.ns, share(len(upper.ns), nu[0]), 1),
        _Edge(-lower.at_s, -lower.ns, share(len(lower.ns), nu[1]), -1),
    )
    bracket = _bracket(sides, guess)
    if bracket is None:
        return None
    flat, steep = bracket
    while steep - flat > ENOUGH_SLOPE:
        middle = (flat + steep) / 2
        if _parts(sides, middle) > 0:
            flat = middle
        else:
            steep = middle
    return _line(sides, (flat + steep) / 2)


@dataclass(frozen=True, slots=True)
class _Edge:
    at_s: Floats
    ns: Floats
    count: int
    way: int

    def lowest(self, slope: float) -> tuple[NDArray[np.intp], Floats]:
        """The points of the edge under that slope, and all points' heights."""
        heights = self.ns - slope * 1e9 * self.at_s
        return np.argpartition(heights, self.count - 1)[: self.count], heights


def _parts(sides: tuple[_Edge, _Edge], slope: float) -> float:
    """Whether a steeper line would part the edges further: the sign of the derivative."""
    return -sum(float(side.at_s[side.lowest(slope)[0]].mean()) for side in sides)


def _bracket(sides: tuple[_Edge, _Edge], guess: float) -> tuple[float, float] | None:
    """Slopes on both sides of the best one."""
    width = FIRST_BRACKET
    while _parts(sides, flat := max(guess - width, -MOST_SLOPE)) < 0:
        if flat == -MOST_SLOPE:
            return None
        width *= 10
    width = FIRST_BRACKET
    while _parts(sides, steep := min(guess + width, MOST_SLOPE)) > 0:
        if steep == MOST_SLOPE:
            return None
        width *= 10
    return flat, steep


def _line(sides: tuple[_Edge, _Edge], slope: float) -> Line:
    edges, variance, times = [], 0.0, []
    for side in sides:
        picked, heights = side.lowest(slope)
        edges.append(float(heights[picked].max()))
        variance += float(heights[picked].var()) / side.count
        times.append(side.at_s[picked] * side.way)
    where = np.concatenate(times)
    return Line(
        offset_ns=(edges[0] - edges[1]) / 2,
        slope=slope,
        half_rtt_ns=(edges[0] + edges[1]) / 2,
        spread_ns=math.sqrt(variance) / 2,
        middle_s=float(where.mean()),
        span_s=float(np.ptp(where)),
    )
