"""What a path takes without queues, and what queues may so have done to a line. Pure.

A queue that fills on one way as the other's drains turns a line, and no round trip of the window
says so alone. What does is that it differs from the least that the path has ever had, which is
known once it has been steady for a while.
"""

from __future__ import annotations

from collections import deque

from clocksync.pair.fit import MOST_SLOPE, Line
from clocksync.pair.model import SECOND, Rules
from clocksync.pair.points import Window

CRYSTALS = 2e-4
"""Two of them, 100 ppm off each, the worst there are in hosts. A steeper line is not theirs."""


class BaseDelay:
    """Of one path."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.half_ns = 0.0
        """Half of the least round trip, once it has been steady for a while; 0: it has not."""
        self._halves: deque[tuple[int, float]] = deque()
        """When windows ended, and theirs: until it is, or of those that share points with the
        present one."""
        self._since_ns = 0
        """The first of them."""

    def forget(self, half_rtt_ns: float = 0.0) -> None:
        """What the path takes without queues is this; 0: nothing is known of it."""
        self.half_ns, self._since_ns = half_rtt_ns, 0
        self._halves.clear()

    def queue_error(self, line: Line, window: Window, before: float | None) -> tuple[float, float]:
        """By how much queues may have put a line off, ns, and turned it, ns/ns.

        They filled or drained by what its least round trip differs from the path's.

        All of its round trip, while nothing steady has been seen: who begins in queues that come
        and go takes them for the path.

        Args:
            line: of the window.
            window: its points.
            before: by how much the line of before may have been turned; None: there is none.
        """
        self._look(line, window)
        changed = abs(line.half_rtt_ns - self.half_ns)
        if changed <= self.rules.sigmas * line.spread_ns:
            changed = 0.0  # the edge's own scatter
        # The truth lies between the edges wherever these have points, and may go from one to the
        # other within half of that; but not faster than crystals do.
        span = min(window.till_ns - window.since_ns, line.span_s * SECOND)
        bend = min(4 * changed / max(span, 1), MOST_SLOPE + abs(line.slope))
        bend = max(bend, abs(line.slope) - CRYSTALS)
        recent = self._halves
        if before is not None and len(recent) > 1 and recent[-2][0] == window.till_ns:
            # The same packets again. Which of two that are level makes the edge is no news either.
            bend = max(bend, before)
        return (changed if self.half_ns else 0.0), bend

    def _look(self, line: Line, window: Window) -> None:
        """Take the window's least round trip; once steady for long enough it is the path's."""
        # By the packets' time: where nothing came, time that passes bears nothing out.
        ended, recent = window.till_ns, self._halves
        self._since_ns = self._since_ns or ended
        # Of long windows the same few packets are the least round trip for long.
        steady_ns = self.rules.steady_ns + window.length_ns - self.rules.window_ns
        recent.append((ended, line.half_rtt_ns))
        if self.half_ns:
            while recent[0][0] <= ended - window.length_ns:
                self.half_ns = min(recent.popleft()[1], self.half_ns)
        elif ended - self._since_ns >= steady_ns:
            while recent[0][0] < ended - steady_ns:
                recent.popleft()
            least, most = (way(half for _, half in recent) for way in (min, max))
            if most - least <= max(self.rules.steady * least, self.rules.sigmas * line.spread_ns):
                self.half_ns = least
