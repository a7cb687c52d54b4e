"""Whether one of a path's two clocks was stepped since its last line. Pure.

Clocks are stepped by an operator, or by a daemon that sets the time; a line through a step is wrong
by half of it for a whole window. A step moves both edges the same way, and one of them to where no
delay can put a point: packets of ours arrive before they could, or the peer's do. A queue moves one
edge, or both apart; a shorter route moves both together.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from clocksync.pair.model import Pair, Rules
from clocksync.pair.points import Points
from clocksync.pair.trains import Ints

Floats = NDArray[np.float64]


class Look(Enum):
    """What the newest points say of the last line."""

    WELL = "well"
    WAIT = "wait"
    STEP = "step"


def look(last: Pair, ways: tuple[Points, Points], rules: Rules, now_ns: int) -> tuple[Look, int]:
    """Whether the newest points can be of the clocks that the last line is of.

    A point nearer than the edge was never there before. If the other direction's edge has moved
    away since then, the clock was stepped; if it has not, a way became shorter.

    Args:
        last: the line.
        ways: all points, of our packets and of the peer's.
        rules: parameters.
        now_ns: our clock.

    Returns:
        That, and since when they cannot (our clock, ns; of no use where all is well).
    """
    above, below = (
        _beyond(last, points, side, rules) for points, side in zip(ways, (1, -1), strict=True)
    )
    # A queue that goes from one direction to the other is no step.
    most = last.step_ns + last.error_ns(now_ns) + last.queue_ns
    ahead, behind = below[0][below[1] > most], above[0][above[1] < -most]
    up, down = (len(x) >= rules.odd_points for x in (ahead, behind))
    if up == down:
        return Look.WELL, 0  # or both ways are shorter
    since = int(ahead[0] if up else behind[0])
    others = above if up else below
    late = others[0] >= since
    at, away = others[0][late], others[1][late]
    if len(away) < rules.newest_points:
        return Look.WAIT, since
    moved = away > most if up else away < -most
    if moved.all():
        return Look.STEP, since
    if up:
        # If it is ours, and went back by so much, some of before it seem to be of after it.
        back = since + round(float(np.median(below[1][below[1] > most])))
        if moved[at >= back].all():
            enough = np.count_nonzero(at >= back) >= rules.newest_points
            return (Look.STEP, back) if enough else (Look.WAIT, since)
    return Look.WELL, since


def _beyond(last: Pair, points: Points, side: int, rules: Rules) -> tuple[Ints, Floats]:
    """The newest points, from the edge of the last line."""
    at, apart = points.since(last.seen_ns - rules.newest_ns)
    height = last.apart_ns + side * last.half_rtt_ns + last.skew_ns
    return at, (apart - last.base_ns) - (last.slope * (at - last.at_ns) + height)
