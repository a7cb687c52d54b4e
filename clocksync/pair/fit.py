"""Straight line between two clouds of one-way delays: how far a peer's clock is from ours. Pure.

Each probe packet gives one point. A packet of ours to the peer: ``receive stamp (peer) - transmit
stamp (ours)`` = offset + delay there, so it lies *above* the offset by the delay. A packet of the
peer's: ``transmit stamp (peer) - receive stamp (ours)`` = offset - delay back, *below* it. Delays
are never less than the wire's and now and then just that, so the offset runs midway between the
lower edge of the upper cloud and the upper edge of the lower one.

Huygens (Geng et al., NSDI 2018) finds that line with a support vector machine. Here an edge is the
mean of the lowest share ``nu`` of its cloud (the conditional value at risk, Rockafellar and Uryasev
2000), and the slope is the one with which the two edges are furthest apart. That distance is
concave in the slope and made of straight pieces, and a partial sort of each cloud gives the piece
at a slope. Where the pieces at two slopes meet, it is at most as high: so goes the search (the
cutting planes of Kelley, 1960), which ends on the very corner after some six sorts. The offset then
lies midway between where those shares end (the quantiles): their means reach for outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_SLOPE = 500e-6
"""Of two crystals, and one of them slewed as fast as the kernel lets NTP: past it something else is
being fitted."""
ENOUGH_SLOPE = 5e-16
"""How well the slope is found, where the next test does not end it: in a window of 2 s the edges
are then within ``ENOUGH_NS`` of as far apart as can be, for they rise by 2e9 ns at most."""
ENOUGH_NS = 1e-6
"""Edges that are within this of as far apart as can be are on the corner."""
FIRST_BRACKET = 4e-9
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
    sides = _Side.of(upper, 1, nu[0]), _Side.of(lower, -1, nu[1])
    bracket = _bracket(sides, guess)
    return None if bracket is None else _line(sides, _furthest(sides, *bracket))


class Envelope(NamedTuple):
    """One cloud's, as a line over our clock."""

    ns: float
    """At the cloud's origin, less its base."""
    slope: float
    spread_ns: float
    """Standard error of its height from the scatter of its points."""
    middle_s: float
    span_s: float


def envelope(cloud: Cloud, way: int, nu: float, guess: float = 0.0) -> Envelope | None:
    """That of one cloud alone: the line below ``nu`` of its points that is highest at the origin.

    Args:
        cloud: of one direction; its origin is to be near the middle of its times.
        way: 1: our packets, an upper cloud and its lower edge; -1: the peer's.
        nu: as of `fit`.
        guess: as of `fit`.

    Returns:
        None as of `fit`.
    """
    if len(cloud.ns) < FEWEST:
        return None
    sides = (_Side.of(cloud, way, nu),)
    bracket = _bracket(sides, guess)
    if bracket is None:
        return None
    line = _ends(sides, _furthest(sides, *bracket))
    return Envelope(way * line.heights[0], line.slope, math.sqrt(line.variance), line.middle_s,
                line.span_s)  # fmt: skip


class _Side(NamedTuple):
    """One cloud, as an upper one."""

    points: Floats
    """Shape (2, n): ``at_ns`` and ``ns``."""
    at_ns: Floats
    ns: Floats
    edge: int
    """How many points make it."""
    way: int

    @staticmethod
    def of(cloud: Cloud, way: int, nu: float) -> _Side:
        points = np.empty((2, len(cloud.ns)))
        np.multiply(cloud.at_s, way * 1e9, out=points[0])
        np.multiply(cloud.ns, way, out=points[1])
        return _Side(points, points[0], points[1], share(len(cloud.ns), nu), way)


class _Piece(NamedTuple):
    """How far the edges are apart, as a straight line over the slope; nowhere are they further."""

    slope: float
    """Where it is just that."""
    ns: float
    rise: float
    edges: list[list[list[float]]]
    """Of each side, of the points that make it: when, and how high."""

    @staticmethod
    def at(sides: tuple[_Side, ...], slope: float) -> _Piece:
        """The one of that slope."""
        ns = rise = 0.0
        edges = []
        for points, at_ns, over, count, _ in sides:
            order = (over - slope * at_ns).argpartition(count - 1)
            # Of the few that are left Python is done before NumPy has begun.
            edge = points.take(order[:count], 1).tolist()
            edges.append(edge)
            at = sum(edge[0])
            ns += (sum(edge[1]) - slope * at) / count
            rise -= at / count
        return _Piece(slope, ns, rise, edges)


def _bracket(sides: tuple[_Side, ...], guess: float) -> tuple[_Piece, _Piece] | None:
    """The pieces at slopes on both sides of the best one; None: it is beyond ``MOST_SLOPE``."""
    last = _Piece.at(sides, max(-MOST_SLOPE, min(MOST_SLOPE, guess)))
    way, width = (1 if last.rise > 0 else -1), FIRST_BRACKET
    while True:
        slope = max(-MOST_SLOPE, min(MOST_SLOPE, guess + way * width))
        found = _Piece.at(sides, slope)
        if found.rise * way <= 0:
            return (last, found) if way > 0 else (found, last)
        if abs(slope) == MOST_SLOPE:
            return None
        last, width = found, 10 * width


def _furthest(sides: tuple[_Side, ...], flat: _Piece, steep: _Piece) -> _Piece:
    """The piece at the best slope between two."""
    halve = False
    while True:
        width, bend = steep.slope - flat.slope, flat.rise - steep.rise
        if width <= ENOUGH_SLOPE or bend <= 0:
            return flat
        further = (steep.ns - flat.ns - steep.rise * width) / bend
        most = flat.ns + flat.rise * further
        further = width / 2 if halve else min(max(further, 0.0), width)
        found = _Piece.at(sides, flat.slope + further)
        if most - found.ns <= ENOUGH_NS:
            return found
        flat, steep = (found, steep) if found.rise > 0 else (flat, found)
        # Where one end hardly moves, halves are faster.
        halve = not halve and steep.slope - flat.slope > width / 2


class _Ends(NamedTuple):
    """What the edges of all sides say at the best slope."""

    heights: list[float]
    """Where each share of points ends, at the origin."""
    variance: float
    """Of the heights' sum."""
    slope: float
    middle_s: float
    span_s: float


def _ends(sides: tuple[_Side, ...], best: _Piece) -> _Ends:
    ends, variance, middle, times = [], 0.0, 0.0, []
    for side, (at_ns, ns) in zip(sides, best.edges, strict=True):
        heights = [y - best.slope * x for x, y in zip(at_ns, ns, strict=True)]
        mean = sum(heights) / side.edge
        ends.append(max(heights))
        variance += sum((y - mean) ** 2 for y in heights) / side.edge**2
        middle += side.way * sum(at_ns)
        times += [side.way * min(at_ns), side.way * max(at_ns)]
    return _Ends(
        ends, variance, best.slope, middle / sum(side.edge for side in sides) / 1e9,
        (max(times) - min(times)) / 1e9,
    )  # fmt: skip


def _line(sides: tuple[_Side, ...], best: _Piece) -> Line:
    said = _ends(sides, best)
    upper, lower = said.heights
    return Line(
        offset_ns=(upper - lower) / 2,
        slope=said.slope,
        half_rtt_ns=(upper + lower) / 2,
        spread_ns=math.sqrt(said.variance) / 2,
        middle_s=said.middle_s,
        span_s=said.span_s,
    )
