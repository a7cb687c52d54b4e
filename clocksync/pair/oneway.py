"""Where one direction of a path meets a queue that does not end, the other one still says the time.

A bulk transfer that fills a link keeps a queue standing: for minutes no packet finds it empty. The
edge of that direction lies higher by the least queue, and the middle between both edges is off by
half of it. The other direction's edge goes on where it was. Half of the round trip without queues
is known from before, so that edge alone is the line: a clock that is only ever late on one side is
read from the other (the lower envelope of one direction: Paxson, SIGMETRICS 1998).

Which direction that is, the edges say by themselves: an edge of packets that met no queue is as
sharp as before, no steeper than clocks can wander, and lies where the last line led. Pure.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from clocksync.pair.fit import Envelope


class Expected(NamedTuple):
    """What a clean edge has to look like."""

    ns: float
    """The line that holds, at the edges' origin, less their base."""
    slope: float
    within_ns: float
    """How far from it a clean edge may lie: error and age of that line."""
    turned: float
    """Nor may its slope be further from the line's."""
    spread_ns: float
    """Nor its spread be more."""


def weighed(*said: tuple[float, float]) -> tuple[float, float]:
    """The mean of values by one over their squared errors, and its error."""
    shares = [1.0 / max(error, 1e-15) ** 2 for _, error in said]
    total = sum(shares)
    mean = sum(share * value for share, (value, _) in zip(shares, said, strict=True)) / total
    return mean, 1.0 / math.sqrt(total)


def clean(
    edges: tuple[Envelope | None, Envelope | None], ways_ns: tuple[float, float], wanted: Expected
) -> Envelope | None:
    """The edge that goes on as before, as a line between both directions.

    Args:
        edges: of our packets, and of the peer's.
        ways_ns: what either way takes without queues.
        wanted: what it has to look like.

    Returns:
        None when neither does, or both do: then it is for the two together to say.
    """
    found = []
    for way, edge, length in zip((1, -1), edges, ways_ns, strict=True):
        if edge is None or edge.spread_ns > wanted.spread_ns:
            continue
        line = edge._replace(ns=edge.ns - way * length)
        near = abs(line.ns - wanted.ns) <= wanted.within_ns
        if near and abs(line.slope - wanted.slope) <= wanted.turned:
            found.append(line)
    return found[0] if len(found) == 1 else None
