"""How far apart two clocks are, followed from one look at a path to the next. Pure.

The line through a window (`clocksync.pair.estimator`) is of all that came in some seconds. While a
queue begins or ends on one way, that edge has packets at one end of the window only and the line
turns; and a way that is shorter now and then (a warm cache, one core instead of two) moves it.
Crystals do
neither: within a second two of 1 ppb/√s part by two nanoseconds from where they were going.

So where the clocks are to be by now is led on from look to look, by a Kalman filter
(`clocksync.pair.kalman`), and each direction is held against that by itself. Its edge is the
earliest packets of the last seconds that are not alone. What such an edge is off is the clock, or
a queue, or another way, and a queue only ever makes it later:

- both are as far apart as usual, or nearly: half of what they differ by is the clock, and half of
  their sum is by how much the ways are longer or shorter now;
- one is where it is to be, the other not: that one alone is measured. If it has jumped, the way is
  another, for crystals do not; it still says how fast the clocks part;
- one is late, and the other not there: a queue, unless many packets lie at that edge;
- neither is there: the clocks go on as they went, and are known less and less.

It begins with a window's line that both directions bear out, and begins again where such lines and
this do not agree for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocksync.pair.kalman import Covariance, DelayVariation, State
from clocksync.pair.model import SECOND, Pair, off
from clocksync.pair.points import Points

Floats = NDArray[np.float64]
WAYS = (1, -1)
"""Our packets are late above the line, the peer's below it."""


@dataclass(frozen=True, slots=True)
class OffsetTrackerRules:
    """Parameters."""

    window_ns: int = 2 * SECOND
    """Of edges: long enough for a way that is empty now and then, and the clock turns by less than
    its edge scatters."""
    least: int = 20
    """Points in it that have an edge."""
    dense: int = 4
    """So many, this near to each other, are not alone; of 200 in a queue of 100 µs none are."""
    dense_ns: float = 25.0
    gate_ns: float = 25.0
    """So much less or more is the same, of both ways together and of the clocks."""
    wide_ns: float = 240.0
    """Both ways together may be so much longer or shorter than usual, and say the time all the
    same if they agree."""
    uneven: float = 0.5
    """Ways that are longer than usual are unlike, too: that part of its square is in the variance
    of what they say."""
    turns: int = 3
    """Looks in a row at which both say another time: then the clocks are others."""
    below: float = 4.0
    """Both ways agree with it within so many deviations."""
    jump: float = 2.0
    """Where an edge alone is off by more than so many deviations the way is another."""
    short_ns: float = 60.0
    """By so much a way may become shorter than usual."""
    late: float = 2.0
    """By how much a way is longer whose edge is later nobody knows: standard deviation, in times
    of how much later it is."""
    crowd: float = 0.03
    """That share of the points, and half as many again as ``dense`` of them, within ``dense_ns``
    bear an edge out that is late by more than ``alone`` deviations of the ways; queues that stand
    leave no such edge."""
    alone: float = 3.0
    most_ns: float = 240.0
    """Nor is any heeded that is later than this, however long nothing has been known."""
    crowded_ns: float = 1000.0
    """Nor is a crowded one that is later than this."""
    lonely_ns: float = 100.0
    """Standard deviation of one that is not crowded."""
    near_ns: float = 60.0
    """A packet so near to an edge bears it out."""
    both_ns: float = 6.0
    """Standard deviations of what both ways say. They share most of their window with the last
    look, so this is larger than what edges scatter."""
    breath_ns: float = 18.0
    """Standard deviation of by how much ways are longer than usual."""
    calm_s: float = 5.0
    """And how long they stay so (`clocksync.pair.kalman.DelayVariation`)."""
    rate_ns: float = 10.0
    """Standard deviation of the rate that it begins with, ns/s: the first lines after a flood are
    turned."""
    apart_ns: float = 150.0
    """Nor may it be so far from a window's line that is sure."""
    learn: float = 1 / 64
    """Share of what is new in the usual delays."""
    grain_ns: float = 16.0
    """So far apart lie the first fiftieth and the first tenth of a path's packets where the rules
    are as they stand here; as coarse or fine as its are, are its rules."""
    finest: float = 0.3
    coarsest: float = 1.5
    """Where stamps are coarser, or hardly a packet finds all queues empty, windows' lines are
    better: they average more, and what is led on through that lags behind its crystals, on all
    paths of a host alike, which the mesh does not average out."""
    sure_ns: int = SECOND
    """So long windows' lines have to be sure before it begins."""
    patience_ns: int = 3 * SECOND
    """And so long it lasts until they are believed instead."""


class _Edge(NamedTuple):
    """The earliest points of a way that are not alone."""

    way: int
    ns: float
    """Later than usual, by where the clocks are to be."""
    crowded: bool
    """Many lie there."""


class OffsetTracker:
    """Of one path."""

    def __init__(self, rules: OffsetTrackerRules | None = None) -> None:
        self.rules = rules or OffsetTrackerRules()
        self._state: State | None = None
        self._base_ns = 0
        self._usual = (0.0, 0.0)
        """What either way takes without queues."""
        self._both_ns = self._unsure_ns = 0
        """When both ways last said the same, and when a window's line was last none to begin
        with."""
        self._turned = 0
        """Looks at which they did not agree."""
        self._grain = 1.0
        """As many times as coarse as what the rules are for are this path's stamps."""

    def reset(self) -> None:
        """Of clocks that are no more nothing is led on."""
        self._state = None
        self._unsure_ns = 0

    def follow(self, line: Pair, sure: bool, ways: tuple[Points, Points], now_ns: int) -> Pair:
        """Where the clocks are, by the newest points.

        Args:
            line: the window's.
            sure: whether it is of both directions, and neither was in a queue.
            ways: all points, of our packets and of the peer's.
            now_ns: our clock.

        Returns:
            The line that is led on, or the window's while there is none. Bounds rest on the
            window's: this one's is that, and how far it is off.
        """
        rules = self.rules
        if now_ns < max(self._unsure_ns, self._state.at_ns if self._state else 0):
            self.reset()  # our clock was set back
        if not (sure and self._borne_out(line, ways, now_ns)) or not self._unsure_ns:
            self._unsure_ns = now_ns
        sure_now = self._unsure_ns < now_ns
        sure = now_ns - self._unsure_ns >= rules.sure_ns
        if self._state is not None:
            # What was usual had queues in it, or both ways have long been others.
            shorter = sum(self._usual) - 2 * line.half_rtt_ns > 2 * rules.near_ns * self._grain
            if shorter or (sure and now_ns - self._both_ns > rules.patience_ns):
                self._state = None
        if self._state is not None:
            self._state = self._look(self._state, ways, now_ns)
        elif sure:
            self._state = self._begin(line, ways, now_ns)
        if self._state is None:
            return line
        made = self._made(self._state, line, now_ns)
        # A clock that was turned, and both directions bear that out.
        deviation = self._led(self._state, now_ns).deviation()
        most = max(rules.apart_ns * self._grain, rules.below * deviation)
        if sure_now and off(made, line, now_ns) > most:
            self._state = None
            return line
        return made

    def _made(self, state: State, line: Pair, now_ns: int) -> Pair:
        """The line of a state, which is as old as its last measurement."""
        made = line._replace(
            at_ns=state.at_ns, base_ns=self._base_ns, apart_ns=state.ns,
            slope=state.rate / SECOND, slope_error=math.sqrt(state.spread.bb) / SECOND,
            # Where a window's edges scatter, or met queues, these measurements did.
            spread_ns=math.hypot(state.deviation(), line.spread_ns),
        )  # fmt: skip
        made = made._replace(bend=line.drift(now_ns) + abs(made.slope - line.slope))
        # What it grows by since the window's line was made is in that one's bound already.
        grown = made.drift(now_ns) * max(now_ns - made.seen_ns, 0)
        bound = line.bound_ns(now_ns) + off(made, line, now_ns)
        return made._replace(limit_ns=bound - grown)

    def _borne_out(self, line: Pair, ways: tuple[Points, Points], now_ns: int) -> bool:
        """Whether the newest points of both directions lie at the edges of a window's line."""
        for way, points in zip(WAYS, ways, strict=True):
            at, apart = points.since(now_ns - SECOND // 2)
            middle = line.apart_ns + line.slope * (at - line.at_ns)
            over = way * ((apart - line.base_ns) - middle) - _length(line, way)
            near = np.abs(over) < self.rules.near_ns * self._grain
            if np.count_nonzero(near) < self.rules.dense:
                return False
        return True

    def _begin(self, line: Pair, ways: tuple[Points, Points], now_ns: int) -> State | None:
        self._base_ns = line.base_ns
        height = max(line.spread_ns, self.rules.both_ns) ** 2
        turn = max(line.slope_error * SECOND, self.rules.rate_ns) ** 2
        age = min((now_ns - line.at_ns) / SECOND, 1.0)
        spread = Covariance(height + turn * age**2, turn * age, 0.0, turn, 0.0, 1.0)
        state = State(now_ns, line.apart(now_ns), line.slope * SECOND, 0.0, spread)
        self._grain = self._coarse(line, state, ways)
        edges = [
            self._edge(state, points, way, _length(line, way))
            for way, points in zip(WAYS, ways, strict=True)
        ]
        if self._grain > self.rules.coarsest:
            return None
        out, back = (math.inf if edge is None else edge.ns for edge in edges)
        if max(abs(out), abs(back)) > self.rules.near_ns * self._grain:
            return None
        # The window's edges are a little further in or out than these, each by itself.
        half = (out - back) / 2
        self._usual = _length(line, 1) + out - half, _length(line, -1) + back + half
        self._both_ns = now_ns
        return state._replace(ns=state.ns + half)

    def _coarse(self, line: Pair, state: State, ways: tuple[Points, Points]) -> float:
        """How coarse this path's stamps are: how far the first tenth of its packets lie apart."""
        found = self.rules.finest
        for way, points in zip(WAYS, ways, strict=True):
            over = self._late(state, points, way, _length(line, way))
            few, more = len(over) // 50, len(over) // 10
            if more > few:
                ordered = np.partition(over, (few, more))
                found = max(found, float(ordered[more] - ordered[few]) / self.rules.grain_ns)
        return found

    def _late(self, state: State, points: Points, way: int, usual_ns: float) -> Floats:
        """How much later than usual the newest points are, by where the clocks are to be."""
        at, apart = points.since(state.at_ns - self.rules.window_ns)
        to_be = state.ns + state.rate * ((at - state.at_ns) / SECOND)
        late: Floats = way * ((apart - self._base_ns) - to_be) - usual_ns
        return late

    def _edge(self, state: State, points: Points, way: int, usual_ns: float) -> _Edge | None:
        """That of a direction; None: there is none."""
        rules, near = self.rules, self.rules.dense_ns * self._grain
        late = self._late(state, points, way, usual_ns)
        if len(late) < rules.least:
            return None
        late.sort()
        apart = late[rules.dense - 1 :] - late[: len(late) - rules.dense + 1]
        first = int((apart <= near).argmax())
        if apart[first] > near:
            return None
        last = first + max(round(rules.crowd * len(late)), rules.dense * 3 // 2) - 1
        crowded = last < len(late) and bool(late[last] - late[first] <= near)
        return _Edge(way, float(late[first : first + rules.dense].mean()), crowded)

    def _look(self, known: State, ways: tuple[Points, Points], now_ns: int) -> State | None:
        """With what the newest points say, if anything; None: these are other clocks."""
        rules, grain = self.rules, self._grain
        state = self._led(known, now_ns)
        lag = -rules.window_ns / 2 / SECOND
        edges = [
            self._edge(state, points, way, usual)
            for way, points, usual in zip(WAYS, ways, self._usual, strict=True)
        ]
        self._turned += 1
        if edges[0] is not None and edges[1] is not None:
            out, back = edges[0].ns, edges[1].ns
            longer, ahead = (out + back) / 2, (out - back) / 2
            # However fine the stamps are: a slow machine is as slow.
            if abs(longer) < rules.wide_ns / 2 * max(grain, 1.0):
                if abs(ahead) < max(rules.gate_ns * grain, rules.below * state.deviation(lag)):
                    self._turned, self._both_ns = 0, state.at_ns
                    return self._both(state, out, back, lag)
                if 2 * abs(longer) < rules.gate_ns * grain:
                    return None if self._turned > rules.turns else known
        self._turned = 0
        return self._alone(state, edges, lag) or known

    def _both(self, state: State, out: float, back: float, lag: float) -> State:
        """With both edges, each so much later than usual."""
        rules = self.rules
        longer, offset = (out + back) / 2, state.offset(lag)
        jump = longer - state.longer
        # Which way is the longer one by how much of it nobody knows.
        variance = self._variance() + jump**2 + rules.uneven * max(longer, 0.0) ** 2
        told = state.freed(jump).told(1, offset + out, variance, lag)
        told = told.told(-1, back - offset, variance, lag)
        gate = rules.gate_ns * self._grain / 2
        learnt = rules.learn * min(max(longer, -gate), gate)
        self._usual = self._usual[0] + learnt, self._usual[1] + learnt
        return told._replace(longer=told.longer - learnt)

    def _alone(self, state: State, edges: list[_Edge | None], lag: float) -> State | None:
        """With the edge that is nearer to where it is to be; None: there is none to be believed."""
        rules, grain, variance = self.rules, self._grain, self._variance()
        own = rules.alone * math.sqrt(state.spread.cc + variance)
        most = min(max(own, state.deviation(lag)), rules.most_ns * grain)
        there = [
            edge for edge in edges
            if edge is not None
            and edge.ns - state.longer < (rules.crowded_ns * grain if edge.crowded else most)
        ]  # fmt: skip
        if not there:
            return None
        way, ns, crowded = min(there, key=lambda edge: abs(edge.ns - state.longer))
        late = ns - state.longer
        if late > rules.jump * math.sqrt(state.spread.cc + variance):
            state = state.freed(rules.late * late)
        elif late < -rules.jump * math.sqrt(state.variance(way, lag) + variance):
            # No way is shorter than it can be: the rest is the clocks.
            short = min(max(rules.short_ns * grain + state.longer, 0.0), -late)
            state = state.freed(short, -late - short)
        if not crowded:
            variance += (rules.lonely_ns * grain) ** 2
        return state.told(way, state.expected(way, lag) + late, variance, lag)

    def _variance(self) -> float:
        """Of where one edge is, but for the length of its way."""
        return 2 * (self.rules.both_ns * self._grain) ** 2

    def _led(self, state: State, now_ns: int) -> State:
        return state.led(
            now_ns, DelayVariation(self.rules.breath_ns * self._grain, self.rules.calm_s)
        )


def _length(line: Pair, way: int) -> float:
    """What a way takes without queues, by a window's line."""
    return line.half_rtt_ns + way * line.skew_ns
