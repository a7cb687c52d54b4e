"""How far a master's time is ahead of our clock, from the exchanges of the last half minute. Pure.

A Sync is one point below the offset by its delay, a Delay_Req one above (11.3); the offset runs
midway between the edges of both clouds (`clocksync.pair.fit`): messages that stood in a queue are
inside and count for nothing. Half of what lies between the edges is how far the line can be off
when the two ways differ, which nobody can see (11.6 calls it delayAsymmetry).

A master whose time steps shows points where no delay can put one; see `MasterEstimator._look`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clocksync.pair.fit import FEWEST, Cloud, fit
from clocksync.pair.model import SECOND


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of an estimator."""

    window_ns: int = 32 * SECOND
    """A crystal's walk of 1 ppb/√s takes it some 0.1 us off a line in that: a hundredth of what
    software stamps scatter by."""
    first_ns: int = 2 * SECOND
    """A first line rests on so much."""
    nu: float = 0.1
    """Share of the points that make an edge, at least ``edge`` of them and at most half."""
    edge: int = 8
    odd: int = 3
    """Points where none can be, before anything is made of it."""
    others: int = 6
    """Of the other direction since the first of those, all of which have to have moved away. Where
    so many came of the same direction and fewer than ``odd`` are odd, those are bad stamps."""
    step_ns: float = 1000.0
    """A smaller step is averaged in; half of it is in the bound."""
    step_spreads: float = 10.0
    """So many times the scatter are no step either."""
    stamp_ns: float = 1000.0
    """How far off a stamp may be that was converted from the wall clock to ours."""
    sigmas: float = 4.0
    wander: float = 5e-9
    """Most that the slope changes within a second (as in `clocksync.pair.model`)."""


class Estimate(NamedTuple):
    """A master's time over our clock."""

    at_ns: int
    """Our clock: where the line is best known."""
    base_ns: int
    apart_ns: float
    """The master's time less our clock there, beyond ``base_ns``."""
    slope: float
    """How fast that grows, ns/ns."""
    half_rtt_ns: float
    """Mean path delay: half of what lies between the edges, and the most that a difference of the
    two ways can make."""
    spread_ns: float
    """Standard error."""
    slope_error: float
    seen_ns: int
    """Our clock: the newest point."""
    points: int
    step_ns: float
    """Smallest step that would have been seen."""
    rules: Rules

    def ahead(self, now_ns: int) -> float:
        """The master's time less our clock at ``now_ns``, beyond ``base_ns``."""
        return self.apart_ns + self.slope * (now_ns - self.at_ns)

    def error_ns(self, now_ns: int) -> float:
        """How far off it is, should both ways be alike."""
        age = abs(now_ns - self.at_ns)
        walked = self.rules.wander * age * age / SECOND / 2
        fixed = self.rules.sigmas * self.spread_ns + self.step_ns / 2 + self.rules.stamp_ns
        return fixed + self.drift * age + walked

    @property
    def drift(self) -> float:
        """By so much a nanosecond the rate may be off."""
        return self.rules.sigmas * self.slope_error

    def bound_ns(self, now_ns: int) -> float:
        """How far off it is, whatever the ways are like."""
        return self.half_rtt_ns + self.error_ns(now_ns)


class MasterEstimator:
    """Of one master. Times of the master and of our clock are whole nanoseconds."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.last: Estimate | None = None
        self.steps = 0
        """Of the master's time, seen so far."""
        self.doubt = False
        """The newest points speak against the last line, and it is open what they mean."""
        self._up: deque[tuple[int, int]] = deque()
        self._down: deque[tuple[int, int]] = deque()
        """Our clock, and how far the master's is ahead as the message shows it."""

    def reset(self) -> None:
        """Nothing of before is true."""
        self._up.clear()
        self._down.clear()
        self.last, self.doubt = None, False

    def sync(self, sent_ns: int, heard_ns: int) -> None:
        """A Sync: when it left by the master's clock, corrected, and came by ours."""
        self._down.append((heard_ns, sent_ns - heard_ns))

    def delay(self, sent_ns: int, heard_ns: int) -> None:
        """A Delay_Req: when it left by our clock, and came by the master's, corrected."""
        self._up.append((sent_ns, heard_ns - sent_ns))

    def estimate(self, now_ns: int) -> Estimate | None:
        """The line as of now; None while there are too few points.

        In doubt, and while no points come, the last one stays and its bound grows.
        """
        for points in (self._up, self._down):
            _drop(points, now_ns - self.rules.window_ns)
        if self.last is not None:
            stepped = self._look(self.last, now_ns)
            if stepped is None:
                return self.last
            if stepped:
                self.steps += 1
                self.last = None
                for points in (self._up, self._down):
                    _drop(points, stepped)
        newest = min((p[-1][0] for p in (self._up, self._down) if p), default=0)
        if self.last is not None and newest <= self.last.seen_ns:
            return self.last
        found = self._fit()
        if found is not None or self.last is None:
            self.last = found
        return self.last

    def _fit(self) -> Estimate | None:
        up, down, rules = self._up, self._down, self.rules
        if min(len(up), len(down)) < FEWEST:
            return None
        first, last = max(up[0][0], down[0][0]), min(up[-1][0], down[-1][0])
        if last - first < rules.first_ns:
            return None
        origin, base = (first + last) // 2, (up[0][1] + down[0][1]) // 2
        clouds = [
            Cloud(
                np.array([(at - origin) / SECOND for at, _ in points]),
                np.array([float(apart - base) for _, apart in points]),
            )
            for points in (up, down)
        ]
        nu = tuple(min(0.5, max(rules.nu, rules.edge / len(p))) for p in (up, down))
        line = fit(clouds[0], clouds[1], (nu[0], nu[1]), self.last.slope if self.last else 0.0)
        if line is None or line.half_rtt_ns <= 0:
            # A rate no crystal has, or messages that came before they left: a step lies within.
            for points in (up, down):
                _drop(points, origin)
            return None
        at = origin + round(line.middle_s * SECOND)
        # Of points spread evenly over a span, the deviation is the span over √12.
        deviation = max(line.span_s, 1e-3) / math.sqrt(12) * SECOND
        return Estimate(
            at, base, line.offset_ns + line.slope * SECOND * line.middle_s, line.slope,
            line.half_rtt_ns, line.spread_ns, line.spread_ns / deviation, last,
            len(up) + len(down), max(rules.step_ns, rules.step_spreads * line.spread_ns), rules,
        )  # fmt: skip

    def _look(self, last: Estimate, now_ns: int) -> int | None:
        """Since when points are of another time than the last line's; 0: they are not.

        Points beyond an edge were never there before. If the other direction has moved away since
        then, the master's time (or our clock) was stepped; else a way became shorter.

        Returns:
            None while that is open. No line may rest on such points until then: they are few, so it
            would lie where the last one lay, but its scatter would be the step's own height, and
            what is as high as the scatter is not seen as a step any more.
        """
        most = last.step_ns + last.error_ns(now_ns)
        above = self._beyond(last, self._up, last.half_rtt_ns)
        below = self._beyond(last, self._down, -last.half_rtt_ns)
        ahead = [at for at, off in below if off > most]
        behind = [at for at, off in above if off < -most]
        self.doubt = False
        sides = [len(odd) >= self.rules.odd for odd in (ahead, behind)]
        if all(sides):
            return 0  # both ways are shorter
        if not any(sides):
            waits = [self._spare(self._down, ahead), self._spare(self._up, behind)]
            return None if any(waits) else 0
        since = ahead[0] if sides[0] else behind[0]
        sign = 1 if sides[0] else -1
        others = [off * sign for at, off in (above if sides[0] else below) if at >= since]
        if len(others) < self.rules.others:
            self.doubt = True
            return None
        return since if min(others) > most else 0

    def _spare(self, points: deque[tuple[int, int]], odd: list[int]) -> bool:
        """Whether more of a direction's points are to be waited for, where a few are odd.

        Once enough came that are not, the odd ones were bad stamps, and are thrown away.
        """
        if not odd or sum(at >= odd[0] for at, _ in points) < self.rules.others:
            return bool(odd)
        bad = set(odd)
        kept = [point for point in points if point[0] not in bad]
        points.clear()
        points.extend(kept)
        return False

    def _beyond(
        self, last: Estimate, points: deque[tuple[int, int]], edge: float
    ) -> list[tuple[int, float]]:
        """Points since the last line, from its edge."""
        return [
            (at, apart - last.base_ns - last.ahead(at) - edge)
            for at, apart in points
            if at > last.seen_ns
        ]


def _drop(points: deque[tuple[int, int]], before_ns: int) -> None:
    while points and points[0][0] < before_ns:
        points.popleft()
