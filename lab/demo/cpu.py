"""Who had the CPU: the demo's own processes, somebody else, nobody.

The job and the machine's other load share the cores. Without knowing what the others took, a slow
second says nothing: it may be a rail that did not come back, or somebody's compiler. proc(5):
``/proc/stat`` is sampled by the tick, a process's own times are exact; over half a second and more
the two agree within a few per cent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lab.demo.record import CpuSample

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # idle, iowait
_COLUMNS = 8  # user nice system idle iowait irq softirq steal; guests are in user and nice


def machine_times(text: str) -> tuple[float, float]:
    """(all, idle) CPU seconds of all cores since boot, from the text of ``/proc/stat``."""
    ticks = [int(word) for word in text.split("\n", 1)[0].split()[1 : 1 + _COLUMNS]]
    return sum(ticks) * TICK_S, sum(ticks[i] for i in _IDLE) * TICK_S


def process_time(text: str) -> tuple[int, float]:
    """(start in ticks, CPU seconds) from the text of ``/proc/<pid>/stat``, without its children.

    The command may hold spaces and parentheses: fields count from the last ``)``.
    """
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[19]), sum(int(field) for field in fields[11:13]) * TICK_S


def softirq_threads(proc: Path = Path("/proc")) -> list[int]:
    """Pids of ksoftirqd: on a machine of namespaces they move the lab's own packets."""
    found = []
    for path in proc.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().startswith("ksoftirqd/"):
                found.append(int(path.parent.name))
    return found


@dataclass(slots=True)
class CpuWatch:
    """Adds up what the demo's own processes used; one that ended keeps what it had."""

    proc: Path = Path("/proc")
    _used: dict[tuple[int, int], float] = field(default_factory=dict)
    _softirq: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._softirq = softirq_threads(self.proc)

    def sample(self, pids: Iterable[int]) -> CpuSample:
        """Now, with ``pids`` and the calling process as the demo's own."""
        for pid in (*pids, os.getpid(), *self._softirq):
            with contextlib.suppress(OSError, ValueError):  # it has just ended
                start, seconds = process_time((self.proc / str(pid) / "stat").read_text())
                self._used[pid, start] = seconds
        total, idle = machine_times((self.proc / "stat").read_text())
        return CpuSample(time.monotonic_ns(), total, idle, sum(self._used.values()))
