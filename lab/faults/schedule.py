"""A schedule of faults, and playing it."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from lab.faults.base import Fault, Site


@dataclass(frozen=True, slots=True)
class Step:
    """``fault`` begins ``at`` seconds after the play does and lasts ``seconds``.

    With ``seconds`` None it lasts until it ends by itself (a flap) or the play is stopped.
    """

    at: float
    fault: Fault
    seconds: float | None


class Play:
    """Plays steps in time from a thread of its own. Everything is armed before time runs."""

    def __init__(self, site: Site, steps: Iterable[Step]) -> None:
        self._steps = list(steps)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        with ExitStack() as undo:
            for step in self._steps:
                step.fault.arm(site)
                undo.callback(step.fault.close)
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="play", daemon=True)
        self.started_ns = 0

    def start(self) -> None:
        """Time runs."""
        self.started_ns = time.monotonic_ns()
        self._thread.start()

    def stop(self) -> None:
        """End what is in force and play no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the last step has ended; an error while playing is raised here."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the play did not end within {timeout_s} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        order = itertools.count()
        queue: list[tuple[float, int, Callable[[], None]]] = []
        for step in self._steps:
            heapq.heappush(queue, (step.at, next(order), step.fault.start))
            if step.seconds is not None:
                heapq.heappush(queue, (step.at + step.seconds, next(order), step.fault.end))
        try:
            while queue and not self._stop.is_set():
                due, _, act = heapq.heappop(queue)
                wait = self.started_ns / 1e9 + due - time.monotonic()
                if wait > 0 and self._stop.wait(wait):
                    break
                act()
            for step in self._steps:
                if step.seconds is None and not self._stop.is_set():
                    step.fault.wait()
        except BaseException as error:
            self._error = error
        finally:
            self._end_all()

    def _end_all(self) -> None:
        try:
            with ExitStack() as stack:
                for step in self._steps:
                    stack.callback(step.fault.close)
                    stack.callback(step.fault.end)
        except Exception as error:
            self._error = self._error or error
