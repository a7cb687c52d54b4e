"""How long a rank works by itself in a step, and the windows of steps that tell it. Pure.

*Own time* of a step is the time from one gate to the next without what the rank waits for others
in collectives. While a collective is under way, the processor time of the training thread counts:
the backward pass goes on beside it, and a thread that waits uses none. Elsewhere all time counts.

All ranks close their windows at the same steps, for they agree on that in the vote of the gate. A
window has `BLOCKS` blocks of steps that follow each other, each with the mean of the logarithms:
what makes a step long for all ranks is in the same block of each, and falls out of their ratios.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

from fabric_train.messages.step_window import BLOCKS, StepWindow, window_s

MOST_STEPS = 1 << 16
"""Of one window."""
LONG_STEP = 4.0
LEAST_S = 1e-6


class OwnTime:
    """Own time of the present step. Times are seconds; ``cpu`` is the training thread's."""

    def __init__(self) -> None:
        self._since: float | None = None
        """Since when nothing is under way; None: something is, or nothing is measured."""
        self._began: tuple[float, float] | None = None
        """When collectives got under way, by clock and by processor time."""
        self._own = 0.0
        self._pending = 0
        self.measures = False

    def reset(self) -> None:
        """Measure nothing until the next gate: this step is none like others."""
        self.measures, self._since, self._began = False, None, None

    def gate_left(self, now: float) -> None:
        """All ranks have voted: a step begins."""
        self.measures, self._own, self._pending = True, 0.0, 0
        self._since, self._began = now, None

    def started(self, now: float, cpu: float) -> None:
        """The training thread starts a collective."""
        if not self.measures:
            return
        self._pending += 1
        if self._since is not None:
            self._own += now - self._since
            self._since, self._began = None, (now, cpu)

    def ended(self, now: float, cpu: float) -> None:
        """A collective has ended; from any thread."""
        if not self.measures or not self._pending:
            return
        self._pending -= 1
        if not self._pending:
            self._add_processor_time(now, cpu)
            self._since = now

    def gate_reached(self, now: float, cpu: float) -> float | None:
        """Own seconds of the step that ends here; None: it was not measured whole."""
        if not self.measures:
            return None
        if self._since is not None:
            self._own += now - self._since
        else:
            self._add_processor_time(now, cpu)
        self.measures = False
        return self._own

    def _add_processor_time(self, now: float, cpu: float) -> None:
        if self._began is not None:
            began, used = self._began
            self._own += max(0.0, min(now - began, cpu - used))
        self._began = None


class WindowLog:
    """Own times of the present window. ``now``: seconds, monotonic.

    A step that is much longer than most, as one with a checkpoint, counts as `LONG_STEP` of them:
    it does not fill a window.
    """

    def __init__(self, world: int) -> None:
        self._length_s = window_s(world)
        self._began: float | None = None
        self._logs: list[float] = []
        self._walls: list[float] = []
        self._gate_at = 0.0
        self._longest_s = math.inf
        """Of a step, as far as it counts."""
        self._counted_s = 0.0

    def reset(self) -> None:
        """What was measured is of another generation, or not of all steps."""
        self._began, self._longest_s = None, math.inf

    def _begin(self, now: float) -> None:
        self._began, self._gate_at = now, now
        self._logs, self._walls, self._counted_s = [], [], 0.0

    def wants_end(self, now: float) -> bool:
        """With the step that is voted on now, this rank would have a whole window."""
        if self._began is None or len(self._logs) + 1 < BLOCKS:
            return False
        counted = self._counted_s + min(now - self._gate_at, self._longest_s)
        return counted >= self._length_s or len(self._logs) >= MOST_STEPS

    def add(
        self, own_s: float | None, generation: int, step: int, now: float, *, ends: bool
    ) -> StepWindow | None:
        """A step has passed the gate; the window that ``ends`` with it, where it is whole.

        ``step``: steps that are applied then. Without ``own_s`` a window begins after this step.
        """
        if own_s is None or self._began is None:
            self._begin(now)
            return None
        wall, self._gate_at = now - self._gate_at, now
        self._counted_s += min(wall, self._longest_s)
        self._walls.append(wall)
        self._logs.append(math.log(max(own_s, LEAST_S)))
        if not ends:
            return None
        logs, began = self._logs, self._began
        self._longest_s = LONG_STEP * median(self._walls)
        self._begin(now)
        if len(logs) < BLOCKS:
            return None
        edges = [len(logs) * block // BLOCKS for block in range(BLOCKS + 1)]
        means = [
            math.exp(math.fsum(logs[first:last]) / (last - first))
            for first, last in pairwise(edges)
        ]
        blocks_ns = [round(one * 1e9) for one in means]
        return StepWindow(generation, step, len(logs), round((now - began) * 1e9), blocks_ns)
