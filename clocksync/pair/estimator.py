"""How far a peer's clock is from ours, from the packets of one path, window after window. Pure.

A window is 2 s of points that the train filter kept; it grows, up to 8 s, while they scatter, and
up to 16 s while they are few. The line through them (`clocksync.pair.fit`) is the estimate. The
newest points are held against the last line before each fit (`clocksync.pair.steps`), and what was
before a step of a clock is dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from clocksync.pair.base_delay import BaseDelay
from clocksync.pair.fit import Line, envelope, fit
from clocksync.pair.model import SECOND, WALK, Pair, Rules, off
from clocksync.pair.offset_tracker import OffsetTracker
from clocksync.pair.oneway import Expected, clean, weighed
from clocksync.pair.points import Points, Window, least_rtt, newest, take
from clocksync.pair.steps import Look, look
from clocksync.pair.trains import Packets, Trains


class PairEstimator:
    """Of one path. Feed it what came, ask it ten times a second or less."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.steps = 0
        """Seen so far."""
        self.doubt = False
        """Whether the newest points speak against the last line, and it is open what they mean."""
        self.last: Pair | None = None
        """As said last."""
        self._line: Pair | None = None
        """The line of the last window, from which `OffsetTracker` extends it."""
        self._both = False
        """Whether it is of both directions, neither in a queue."""
        self._follower = OffsetTracker()
        self.shorter = False
        """Whether a round trip took less than twice what a way is said to take at least, which is
        not heeded since."""
        self.queued = 0
        """Windows that were left out because all their packets had met a queue."""
        self._floor_ns = self._usual_ns = self._scatter_ns = 0.0
        """Half of the path's least round trip; what it usually is, and how lines scatter."""
        self._base_delay = BaseDelay(self.rules)
        self._skew_ns = 0.0
        """Half of what a way became longer by, or shorter, than it was when the other one led on:
        taken off the middle between the edges."""
        self._alone_ns: int | None = None
        """Since when the line is that of one direction."""
        self._sure: Pair | None = None
        """Of the lines that were taken, the one that leads best to now."""
        self._anchor: Pair | None = None
        """The same, of those by both directions: bounds rest on it."""
        self._known_ns = self._heard_ns = self._taken_ns = 0
        """Since when there have been lines, when the newest points came, and when the last line was
        taken."""
        self._before: deque[Pair] = deque(maxlen=64)
        """Lines that were taken, the newest last."""
        self._out, self._back = self.ways = Points(), Points()
        self._window_ns = self.rules.window_ns

    def reset(self) -> None:
        """Our own clock was stepped, or the peer is another: nothing of before is true."""
        self._out.drop(2**62)
        self._back.drop(2**62)
        self.last = self._line = None
        self.doubt = self.shorter = False
        self._follower.reset()
        self._window_ns = self.rules.window_ns
        self._base_delay.forget()

    def feed(self, out: Packets, back: Packets) -> None:
        """Take packets, each once; a train is to be whole in one call.

        Args:
            out: ours, heard by the peer.
            back: the peer's, heard by us.
        """
        feed([(self, out.trains(), back.trains())])

    def estimate(self, now_ns: int) -> Pair | None:
        """The line as of now (our clock); None while there are too few points, or in doubt.

        In doubt the last line may no longer be true. Otherwise who needs a time all the same may
        extrapolate it, with a bound that grows (`Pair.bound_ns`).
        """
        found = self._window_line(now_ns)
        if self._line is None:
            self._follower.reset()
            self.last = None
            return None
        most = self.rules.alike * self.rules.clean_ns
        emptied = self._line.half_rtt_ns - self._floor_ns <= most
        sure = self._both and emptied and not self._warming()
        self.last = self._follower.follow(self._line, sure, self.ways, now_ns)
        return None if found is None else self.last

    def _window_line(self, now_ns: int) -> Pair | None:
        self._both = False
        if self._out.set_back or self._back.set_back:
            self._out.set_back = self._back.set_back = False
            self._stepped(2**62)
        for points in (self._out, self._back):
            points.drop(now_ns - self.rules.longest_ns)
        self.doubt = False
        if self._line is not None:
            verdict, since = look(self._line, self.ways, self.rules, now_ns)
            if verdict is Look.WAIT:
                self.doubt = True
                return None
            if verdict is Look.STEP:
                self._stepped(since)
        known = self._line is not None and now_ns - self._line.seen_ns < self.rules.longest_ns
        window = newest(self.ways, now_ns, self._window_ns, self.rules, known=known)
        self._heard_ns = window.till_ns if window else self._heard_ns
        found = self._fit(window) if window else None
        if window is None or found is None:
            # Too few points say nothing against what is known.
            if self.doubt or (self._line and now_ns - self._line.seen_ns > self.rules.patience_ns):
                self._line = None
            return None
        found = self._shorter(found)
        self._both = not self._queued(window, found, now_ns)
        if self._both:
            self._line = found
            self._before.append(found)
            self._taken_ns = now_ns
            self._learn(found, now_ns)
            self._adapt(found)
            self._alone_ns = None
        elif self._line and (line := self._one_way(window, found, self._line, now_ns)):
            self._line = line
            self._before.append(line)
            self._taken_ns = now_ns
            self._sure = self._better(line, self._sure, now_ns)
            self._settle(found, line, now_ns)
        elif self._before:
            # The first of what bent this window is in the last one too: back by a window.
            while len(self._before) > 1 and self._before[-1].seen_ns > now_ns - found.window_ns:
                self._before.pop()
            self._line = self._led(self._before[-1], found, now_ns)
        return self._line

    def _stepped(self, since_ns: int) -> None:
        """One of the clocks is another since then."""
        self._out.drop(since_ns)
        self._back.drop(since_ns)
        if self._line is not None:
            self.steps += 1
        self._line = None
        self.shorter = False  # that may have been a round trip by two clocks
        self._follower.reset()
        self._window_ns = self.rules.window_ns

    def _warming(self) -> bool:
        """Whether there have been lines for less than two windows, and points for them."""
        return self._heard_ns - self._known_ns < 2 * self.rules.window_ns

    def _adapt(self, found: Pair) -> None:
        """How long the next window is to be."""
        rules = self.rules
        if self._warming():
            return
        if found.spread_ns > rules.loose_ns:
            self._window_ns = min(2 * self._window_ns, rules.wide_ns)
        elif found.spread_ns < rules.loose_ns / 4:
            self._window_ns = max(self._window_ns // 2, rules.window_ns)

    def _shorter(self, found: Pair) -> Pair:
        """Believe a round trip that is shorter than all before: what was known met queues.

        Or one way became shorter; then the line is off by half of that, which nobody can tell.
        """
        if self._sure is None or found.half_rtt_ns >= self._floor_ns - self.rules.clean_ns:
            return found
        if found.spread_ns > self.rules.torn * (1.0 + self._scatter_ns):
            return found  # Few points of it lie far from the rest.
        skew, self._skew_ns = self._skew_ns, 0.0
        self._floor_ns = self._usual_ns = found.half_rtt_ns
        self._sure = found._replace(
            apart_ns=found.apart_ns + skew, asymmetry_ns=found.asymmetry_ns - abs(skew),
            skew_ns=0.0,
        )  # fmt: skip
        self._anchor = self._sure
        return self._sure

    def _learn(self, found: Pair, now_ns: int) -> None:
        """What is usual, and which line leads best to now."""
        first = self._sure is None
        share = 1.0 if first else 1 / 8
        if not found.queue_ns or not self._base_delay.half_ns:
            self._usual_ns += share * (found.half_rtt_ns - self._usual_ns)
            self._scatter_ns += share * (found.spread_ns - self._scatter_ns)
        self._sure = self._better(found, self._sure, now_ns)
        self._anchor = self._better(found, self._anchor, now_ns)

    def _better(self, line: Pair, known: Pair | None, now_ns: int) -> Pair:
        """Which of two leads better to now."""
        if known is None or self._aged(line, now_ns) <= self._aged(known, now_ns):
            return line
        return known

    def _settle(self, found: Pair, line: Pair, now_ns: int) -> None:
        """Both edges are sharp for so long: it is no queue but another way, and known how long."""
        if found.spread_ns > self.rules.sharp * (1.0 + self._scatter_ns):
            self._alone_ns = None
            return
        if self._alone_ns is None:
            self._alone_ns = now_ns
        if now_ns - self._alone_ns <= self.rules.patience_ns:
            return
        self._skew_ns += found.apart(now_ns) - line.apart(now_ns) + (found.base_ns - line.base_ns)
        self._floor_ns = self._usual_ns = found.half_rtt_ns
        self._sure = self._anchor = line
        self._base_delay.forget(found.half_rtt_ns)
        self._alone_ns = None

    def _queued(self, window: Window, found: Pair, now_ns: int) -> bool:
        """Whether what was known is better than this line, which met queues."""
        last, rules = self._sure, self.rules
        worn = self._line is not None and self._worn(window, found, self._line, now_ns)
        if self._line is None or last is None or worn:
            if worn:
                self._base_delay.forget(found.half_rtt_ns)
            self._floor_ns, self._known_ns = found.half_rtt_ns, self._heard_ns
            self._sure = self._anchor = None
            self._before.clear()
            return False
        # A first line may be of a step within it: it has to be borne out by windows without it.
        if self._warming():
            self._floor_ns = min(self._floor_ns, found.half_rtt_ns)
            self._sure = self._anchor = None
            return False
        aged = max(rules.clean_ns, self._aged(last, now_ns))
        turned = abs(found.slope - last.slope)
        turned -= rules.wander * abs(found.at_ns - last.at_ns) / SECOND
        turned -= rules.sigmas * math.hypot(found.slope_error, last.slope_error)
        # While a queue builds up or a route changes, the edge bends: a rate that no crystal has.
        # By what the queue may have put this line off, what was known surely is not by now.
        # That far off, at most, is the new line, and so far, likely, by now the one that is known.
        likely = max(rules.clean_ns, 2 * last.likely_ns(now_ns))
        excess = found.half_rtt_ns - self._floor_ns
        moved = off(found, last, now_ns)
        # Few points of a shorter route lie far from the rest of the edge.
        torn = found.spread_ns > rules.torn * (1.0 + self._scatter_ns)
        sharp = found.spread_ns <= rules.sharp * (1.0 + self._scatter_ns)
        # Both ways alike became longer: a machine that ran faster for a while is as it was. A queue
        # on one of them, or two queues, would have moved the line, or blurred an edge.
        anchor = self._anchor or last
        near = off(found, anchor, now_ns) <= max(rules.clean_ns, 2 * anchor.likely_ns(now_ns))
        alike = sharp and near and excess <= rules.alike * rules.clean_ns
        longer = excess > likely and not alike
        own = self._aged(found, now_ns) + max(excess, 0.0)
        if sharp and not longer and moved > rules.clean_ns + 4 * own:
            # Edges as near to each other as ever leave no room for that: what was known is wrong.
            self._floor_ns = min(self._floor_ns, found.half_rtt_ns)
            self._sure = self._anchor = None
            return False
        if longer or torn or (moved > aged and not alike) or turned > rules.turned:
            self.queued += 1
            return True
        self._floor_ns = min(self._floor_ns, found.half_rtt_ns)
        return False

    def _worn(self, window: Window, found: Pair, last: Pair, now_ns: int) -> bool:
        """Whether it is no queue but a longer path: both edges are sharp after so long.

        And neither lies where it was.
        """
        if now_ns - self._taken_ns <= self.rules.patience_ns:
            return False
        sharp = found.spread_ns <= self.rules.sharp * (1.0 + self._scatter_ns)
        return sharp and self._one_way(window, found, last, now_ns) is None

    def _led(self, last: Pair, found: Pair, now_ns: int) -> Pair:
        """The line of before the queues. It is good for long, and its bound for a minute.

        Then whatever is seen through the queues says where the truth is, if not so well where in
        there: between the edges, and the line is as far off as they are at most.
        """
        if now_ns - last.seen_ns <= self.rules.patience_ns:
            return last
        limit = found.bound_ns(now_ns) + off(last, found, now_ns)
        return last._replace(limit_ns=limit, seen_ns=now_ns)

    def _one_way(self, window: Window, found: Pair, last: Pair, now_ns: int) -> Pair | None:
        """The line by the one direction that meets no queue; None: there is no such."""
        rules, origin, known = self.rules, window.origin, self._anchor
        if known is None:
            return None
        age = abs(origin - last.at_ns) / SECOND
        turned = rules.turned + rules.wander * age + rules.sigmas * last.slope_error
        wanted = Expected(
            last.apart(origin) + (last.base_ns - window.base), last.slope,
            self._aged(last, max(now_ns, last.at_ns)), turned,
            rules.sharp * max(1.0, self._scatter_ns),
        )  # fmt: skip
        upper, lower = (
            envelope(cloud, way, nu, last.slope)
            for cloud, way, nu in zip(window.clouds, (1, -1), window.nu, strict=True)
        )
        ways = self._usual_ns + self._skew_ns, self._usual_ns - self._skew_ns
        line = clean((upper, lower), ways, wanted)
        if line is None:
            return None
        # A queue that is all but empty bends an edge; crystals go on as they went.
        span = max(line.span_s, 1e-3) / math.sqrt(12) * SECOND
        slope, error = weighed(
            (line.slope, 2 * line.spread_ns / span),
            (last.slope, math.hypot(last.slope_error, WALK * math.sqrt(age))),
        )
        height = line.ns + (line.slope - slope) * line.middle_s * SECOND
        made = self._pair(
            Line(height, slope, self._usual_ns, line.spread_ns, line.middle_s, line.span_s),
            window, found.asymmetry_ns,
        )._replace(slope_error=error)  # fmt: skip
        # Whatever the queues: the truth lies between the edges, as far as these are straight. And
        # what was known still holds.
        limit, rests = min(
            (other.bound_ns(now_ns) + off(made, other, now_ns), other) for other in (found, known)
        )
        grows = rests.drift(now_ns) + abs(made.slope - rests.slope)
        return made._replace(limit_ns=limit, bend=grows)

    def _aged(self, last: Pair, now_ns: int) -> float:
        """How far off a line may be by now: what its slope was, and as a random walk goes."""
        age = max(now_ns - last.at_ns, 0)
        walked = self.rules.wander * SECOND * math.pow(age / SECOND, 1.5)
        return last.sigmas * (last.spread_ns + last.slope_error * age) + last.queue_ns + walked

    def _fit(self, window: Window) -> Pair | None:
        line = fit(*window.clouds, window.nu, self._line.slope if self._line else 0.0)
        if line is None:
            return None
        least = max(line.half_rtt_ns, least_rtt(*window.clouds, line.slope) / 2)
        if not self.shorter and line.half_rtt_ns < self.rules.least_way_ns:
            # Not true, then, and no later queue makes it so; bounds that rested on it are none.
            self.shorter = True
            self._sure = self._anchor = None
            self._before.clear()
        least -= 0.0 if self.shorter else self.rules.least_way_ns
        if self._line is None:
            self._skew_ns = 0.0
        least += abs(self._skew_ns)
        bent = self._base_delay.queue_error(line, window, self._line.bend if self._line else None)
        line = replace(line, offset_ns=line.offset_ns - self._skew_ns)
        found = self._pair(line, window, least, bent)
        if line.half_rtt_ns <= 0 or (self._line is None and found.slope_error > self.rules.vague):
            # Edges that cross, or are torn, are of two clocks: one was stepped within the window.
            self.doubt = True
            self._out.drop(window.origin)
            self._back.drop(window.origin)
            return None
        return found

    def _pair(
        self, line: Line, window: Window, least: float, bent: tuple[float, float] = (0.0, 0.0)
    ) -> Pair:
        rules, length = self.rules, window.length_ns
        at = window.origin + round(line.middle_s * SECOND)
        apart = line.offset_ns + line.slope * SECOND * line.middle_s
        # Of points spread evenly over a span, the deviation is the span over √12.
        span = max(line.span_s, 1e-3) / math.sqrt(12)
        step = max(rules.step_ns, rules.step_spreads * line.spread_ns)
        seen = window.origin + length // 2
        warming = self._line is None or self._warming()
        return Pair(
            at, window.base, apart, line.slope, line.half_rtt_ns, least, line.spread_ns,
            line.spread_ns / (span * SECOND), length, seen, window.kept, step, rules.wander,
            rules.sigmas * (rules.warm if warming else 1.0), self._skew_ns, *bent,
        )  # fmt: skip


def feed(came: Sequence[tuple[PairEstimator, Trains, Trains]]) -> None:
    """Give several estimators their newest trains, each once: ours, and the peers'."""
    take([(each.ways[0], out) for each, out, _ in came], 1)
    take([(each.ways[1], back) for each, _, back in came], -1)
