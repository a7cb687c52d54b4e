"""A witness of a machine that is overloaded: how long processes were kept from running."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

_BEAT_S = 0.005
_BEATS = 4
"""Beats between two looks at the threads of the watched processes."""


def run_delays(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[str, float]:
    """Seconds that each thread has waited for a processor so far, by its path.

    ``sched_info.run_delay`` of the kernel: a wait is added when the thread runs again.
    """
    found: dict[str, float] = {}
    for pid in pids:
        for file in proc.glob(f"{pid}/task/*/schedstat"):
            # The thread may have ended.
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[str(file)] = int(file.read_text().split()[1]) / 1e9
    return found


class StallWatchdog:
    """In the ``with`` block a thread sleeps again and again; `longest_s` is the longest stall.

    That is how late it woke, or how long a thread of a watched process waited for a processor
    between two looks. A process that sleeps most of the time is run before busy ones: its own
    lateness alone does not show what the others wait.
    """

    def __init__(self, pids: Iterable[int] = (), proc: Path = Path("/proc")) -> None:
        """Args: ``pids``: the processes to watch beside its own thread."""
        self.longest_s = 0.0
        self._pids, self._proc = tuple(pids), proc
        self._waited: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StallWatchdog:
        self._waited = run_delays(self._pids, self._proc)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while True:
            for _ in range(_BEATS):
                began = time.monotonic()
                if self._stop.wait(_BEAT_S):
                    return
                self.longest_s = max(self.longest_s, time.monotonic() - began - _BEAT_S)
            self._look()

    def _look(self) -> None:
        now = run_delays(self._pids, self._proc)
        waits = (now[thread] - self._waited.get(thread, now[thread]) for thread in now)
        self.longest_s = max(self.longest_s, *waits, 0.0)
        self._waited = now
