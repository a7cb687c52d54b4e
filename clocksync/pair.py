"""How far a peer's clock is from ours, from the packets of one path, window after window. Pure.

A window is 2 s of points that the train filter kept; it grows, up to 16 s, while they are few. The
line through them (`clocksync.fit`) is the estimate. Clocks are also *stepped*, by an operator or by
a daemon that sets the time; a line through a step is wrong by half of it for a whole window. A step
moves both edges the same way, and one of them to where no delay can put a point: packets of ours
arrive before they could, or the peer's do. A queue moves one edge, or both apart; a shorter route
moves both together. So the newest points are held against the last line before each fit, and what
was before a step is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocksync.fit import FEWEST, Cloud, Line, fit
from clocksync.trains import Packets, TrainFilter

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of an estimator."""

    window_ns: int = 2 * SECOND
    """In 2 s a crystal's random walk of 1 ppb/√s takes it 1 to 2 ns off a line."""
    longest_ns: int = 16 * SECOND
    first_ns: int = SECOND // 2
    """A first line rests on so much: in less a step passes for a slope."""
    enough: int = 80
    """Points of a direction with which the window is long enough: ν of 2 % is two of them then."""
    nu: float = 0.1
    """Share of the points that make an edge, where every train is kept; the less are kept, the
    smaller it is: the more of what was kept stood in a queue that did not change."""
    least_nu: float = 0.02
    """Good up to a load of 90 %, at which an eleventh of the packets finds no queue."""
    newest_ns: int = SECOND // 2
    """Older points were there when the last line was made; these are held against it."""
    odd_points: int = 3
    """Where none can be, before anything is made of it."""
    newest_points: int = 12
    """Of the other direction since the first that cannot be: fewer may all have met a queue."""
    step_ns: float = 200.0
    """A smaller step is averaged in; half of it is in the bound (`Pair.bound_ns`)."""
    step_spreads: float = 10.0
    """So many times the scatter of the last line are no step either."""
    sigmas: float = 4.0
    """Of the spread, in the bound."""
    wander: float = 5e-9
    """Most that the slope changes within a second: five times a crystal's 1 ppb/√s."""


class Pair(NamedTuple):
    """What a path says of its two clocks."""

    at_ns: int
    """Our clock: where the line is best known."""
    base_ns: int
    apart_ns: float
    """The peer's clock minus ours at that moment, beyond ``base_ns``."""
    slope: float
    """How fast that grows, ns/ns."""
    half_rtt_ns: float
    """Half of what lies between the edges: of the least round trip, if the line is true."""
    asymmetry_ns: float
    """Half of the least round trip of packets that followed each other. If the two ways differ, or
    a clock was stepped within the window, the line may be off by so much."""
    spread_ns: float
    slope_error: float
    """Standard error of the slope."""
    window_ns: int
    seen_ns: int
    """Our clock: as of when it was made."""
    kept: tuple[float, float]
    """Share of the trains that were kept, of ours and of the peer's."""
    step_ns: float
    """Smallest step that would have been seen."""
    wander: float
    sigmas: float

    def apart(self, now_ns: int) -> float:
        """The peer's clock minus ours at ``now_ns`` (our clock), beyond ``base_ns``."""
        return self.apart_ns + self.slope * (now_ns - self.at_ns)

    def error_ns(self, now_ns: int) -> float:
        """How far off the line is at ``now_ns``, should both ways be alike."""
        age = abs(now_ns - self.at_ns)
        drift = self.sigmas * self.slope_error * age + self.wander * age * age / SECOND / 2
        return self.sigmas * self.spread_ns + self.step_ns / 2 + drift

    def bound_ns(self, now_ns: int) -> float:
        """How far off it is at ``now_ns``, whatever the two ways are like."""
        return self.asymmetry_ns + self.error_ns(now_ns)

    @property
    def weight(self) -> float:
        """One over the variance, for the mesh; no path is trusted to better than a nanosecond."""
        return 1.0 / (1.0 + self.spread_ns * self.spread_ns)


class _Look(Enum):
    """What the newest points say of the last line."""

    WELL = "well"
    WAIT = "wait"
    STEP = "step"


class _Points:
    """Those of one direction, oldest first."""

    def __init__(self) -> None:
        self.filter = TrainFilter()
        self.at: Ints = np.empty(0, np.int64)
        self.apart: Ints = np.empty(0, np.int64)
        self._trains: list[tuple[int, int, int]] = []
        """When, how many, how many of them kept."""

    def take(self, packets: Packets, ours: Ints, sign: int) -> None:
        """Add what the filter keeps; ``sign`` 1: packets of ours."""
        if not len(packets.seq):
            return
        accepted = self.filter.pick(packets)
        self._trains.append((int(ours[-1]), accepted.trains, accepted.kept))
        new = accepted.chosen
        apart = sign * (packets.heard_ns[new] - packets.sent_ns[new])
        self.at = np.concatenate((self.at, ours[new]))
        self.apart = np.concatenate((self.apart, apart))

    def drop(self, before_ns: int) -> None:
        """Forget what is older."""
        kept = self.at >= before_ns
        self.at, self.apart = self.at[kept], self.apart[kept]
        self._trains = [word for word in self._trains if word[0] >= before_ns]

    def since(self, ns: int) -> tuple[Ints, Ints]:
        """Points from then on."""
        chosen = self.at >= ns
        return self.at[chosen], self.apart[chosen]

    def rate(self, since_ns: int) -> float:
        """Share of the trains that were kept since then; 0 without any."""
        trains = sum(word[1] for word in self._trains if word[0] >= since_ns)
        return (
            sum(word[2] for word in self._trains if word[0] >= since_ns) / trains if trains else 0.0
        )


def _least_rtt(upper: Cloud, lower: Cloud, slope: float) -> float:
    """The least round trip of a packet and the other way's next before or after it.

    Whatever the clocks are apart falls out, and so does a step before or after both.
    """
    after = np.searchsorted(lower.at_s, upper.at_s)
    trips = []
    for near in (np.clip(after - 1, 0, None), np.clip(after, None, len(lower.at_s) - 1)):
        between = upper.at_s - lower.at_s[near]
        trips.append(float((upper.ns - lower.ns[near] - slope * 1e9 * between).min()))
    return min(trips)


class PairEstimator:
    """Of one path. Feed it what came, ask it ten times a second or less."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.steps = 0
        """Seen so far."""
        self.doubt = False
        """Whether the newest points speak against the last line, and it is open what they mean."""
        self.last: Pair | None = None
        self._out, self._back = _Points(), _Points()

    def reset(self) -> None:
        """Our own clock was stepped, or the peer is another: nothing of before is true."""
        self._out.drop(2**62)
        self._back.drop(2**62)
        self.last, self.doubt = None, False

    def feed(self, out: Packets, back: Packets) -> None:
        """Take packets, each once; a train is to be whole in one call.

        Args:
            out: ours, heard by the peer.
            back: the peer's, heard by us.
        """
        self._out.take(out, out.sent_ns, 1)
        self._back.take(back, back.heard_ns, -1)

    def estimate(self, now_ns: int) -> Pair | None:
        """The line as of now (our clock); None while there are too few points, or in doubt.

        In doubt the last line may no longer be true. Otherwise who needs a time all the same may
        extrapolate it, with a bound that grows (`Pair.bound_ns`).
        """
        for points in (self._out, self._back):
            points.drop(now_ns - self.rules.longest_ns)
        self.doubt = False
        if self.last is not None:
            verdict, since = self._look(self.last, now_ns)
            if verdict is _Look.WAIT:
                self.doubt = True
                return None
            if verdict is _Look.STEP:
                self.steps += 1
                self._out.drop(since)
                self._back.drop(since)
        self.last = self._fit(now_ns)
        return self.last

    def _fit(self, now_ns: int) -> Pair | None:
        rules, window = self.rules, self.rules.window_ns
        while True:
            since = now_ns - window
            upper, lower = self._out.since(since), self._back.since(since)
            if min(len(upper[0]), len(lower[0])) >= rules.enough or window >= rules.longest_ns:
                break
            window = min(2 * window, rules.longest_ns)
        if min(len(upper[0]), len(lower[0])) < FEWEST:
            return None
        if self.last is None and now_ns - max(upper[0][0], lower[0][0]) < rules.first_ns:
            return None
        origin = now_ns - window // 2
        base = int(upper[1].min()) // 2 + int(lower[1].max()) // 2
        clouds = [Cloud((at - origin) / SECOND, (apart - base).astype(float))
                  for at, apart in (upper, lower)]  # fmt: skip
        kept = self._out.rate(since), self._back.rate(since)
        nu = (max(rules.least_nu, rules.nu * kept[0]), max(rules.least_nu, rules.nu * kept[1]))
        line = fit(clouds[0], clouds[1], nu, self.last.slope if self.last else 0.0)
        if line is None:
            return None
        if line.half_rtt_ns <= 0:
            # Edges that cross are of two clocks: one was stepped within the window.
            self.doubt = True
            middle = since + window // 2
            self._out.drop(middle)
            self._back.drop(middle)
            return None
        least = max(line.half_rtt_ns, _least_rtt(clouds[0], clouds[1], line.slope) / 2)
        return self._pair(line, origin, base, window, kept, least)

    def _pair(
        self,
        line: Line,
        origin: int,
        base: int,
        window: int,
        kept: tuple[float, float],
        least: float,
    ) -> Pair:
        rules = self.rules
        at = origin + round(line.middle_s * SECOND)
        apart = line.offset_ns + line.slope * SECOND * line.middle_s
        # Of points spread evenly over a span, the deviation is the span over √12.
        span = max(line.span_s, 1e-3) / math.sqrt(12)
        step = max(rules.step_ns, rules.step_spreads * line.spread_ns)
        return Pair(
            at, base, apart, line.slope, line.half_rtt_ns, least, line.spread_ns,
            line.spread_ns / (span * SECOND), window, origin + window // 2, kept, step,
            rules.wander, rules.sigmas,
        )  # fmt: skip

    def _look(self, last: Pair, now_ns: int) -> tuple[_Look, int]:
        """Whether the newest points can be of the clocks that the last line is of; since when not.

        A point nearer than the edge was never there before. If the other direction's edge has
        moved away since then, the clock was stepped; if it has not, a way became shorter.
        """
        above, below = self._beyond(last, self._out, 1), self._beyond(last, self._back, -1)
        most = last.step_ns + last.error_ns(now_ns)
        ahead, behind = below[0][below[1] > most], above[0][above[1] < -most]
        up, down = (len(x) >= self.rules.odd_points for x in (ahead, behind))
        if up == down:
            return _Look.WELL, 0  # or both ways are shorter
        since = int(ahead[0] if up else behind[0])
        others = above if up else below
        away = others[1][others[0] >= since]
        if len(away) < self.rules.newest_points:
            return _Look.WAIT, since
        moved = away.min() > most if up else away.max() < -most
        return (_Look.STEP if moved else _Look.WELL), since

    def _beyond(self, last: Pair, points: _Points, side: int) -> tuple[Ints, Floats]:
        """The newest points, from the edge of the last line."""
        at, apart = points.since(last.seen_ns - self.rules.newest_ns)
        line = last.apart_ns + last.slope * (at - last.at_ns)
        return at, (apart - last.base_ns) - line - side * last.half_rtt_ns
