"""Whether the machine was left alone during a measurement.

Both sides of a comparison fill both cores, and a compiler beside them takes what it takes: such a
round measures the compiler. So each measurement is told how much of the CPU other processes had,
and one with more than ``LIMIT`` is taken again, whatever its result. That is decided by proc(5)
alone; when the machine does not come to rest, the least disturbed try counts, and the row says so.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from bench.report import Row

LIMIT = 0.03
"""Part of the machine's CPU time that other processes may have had."""
TRIES = 4
SPARE = 10
"""For all measurements of a part together: a machine that never comes to rest costs time only."""
PAUSE_S = 0.5

T = TypeVar("T")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def process_seconds(stat: str) -> float:
    """CPU seconds of all processes, all cores together, from the text of ``/proc/stat``.

    Of the columns user, nice and system: interrupts and what a hypervisor took are nobody's.
    """
    user, nice, system = (int(word) for word in stat.split("\n", 1)[0].split()[1:4])
    return (user + nice + system) * _TICK_S


def children_cpu_s() -> float:
    """User and system time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(slots=True)
class Quiet:
    """Repeats disturbed measurements and remembers how disturbed those were that count."""

    stat: Path = Path("/proc/stat")
    others: list[float] = field(default_factory=list)
    """For each result that counts: the part of the CPU that others had, 0 to 1."""
    repeated: int = 0

    def measure(self, what: Callable[[], T]) -> T:
        """The result of ``what``, which has ended all that it started when it returns."""
        best: tuple[float, T] | None = None
        for attempt in range(TRIES):
            if attempt:
                self.repeated += 1
                time.sleep(PAUSE_S * attempt)
            share, result = self._watched(what)
            if best is None or share < best[0]:
                best = share, result
            if share <= LIMIT or self.repeated >= SPARE:
                break
        assert best is not None
        self.others.append(best[0])
        return best[1]

    def _watched(self, what: Callable[[], T]) -> tuple[float, T]:
        since, mine, busy = time.monotonic(), self._own(), process_seconds(self.stat.read_text())
        result = what()
        elapsed = time.monotonic() - since
        others = process_seconds(self.stat.read_text()) - busy - (self._own() - mine)
        return max(0.0, others / (elapsed * (os.cpu_count() or 1))), result

    def _own(self) -> float:
        return children_cpu_s() + time.process_time()

    def noted(self, rows: list[Row]) -> list[Row]:
        """The rows, with a word on how quiet it was in their notes."""
        text = f"; others had up to {max(self.others, default=0.0):.0%} of the CPU"
        if self.repeated:
            text += f" ({self.repeated} disturbed tries left out)"
        return [replace(row, note=row.note + text) for row in rows]
