"""A thread that says that this process's interpreter runs, and the pauses that a loop announces.

Each beat takes the interpreter's lock (GIL). So beats stop where one call holds it, as one in C
does that never gives it back, and where the process is stopped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

from fabric_train.messages.progress_memory import ProgressMemory

BEAT_S = 0.5
T = TypeVar("T")


class Heartbeat:
    """Of one process. Beats from `start` on: before its first step a long call is no fault."""

    def __init__(self, memory: ProgressMemory) -> None:
        self._memory = memory
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Beat from now on; any number of times."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="fabric-beat", daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        while True:
            self._memory.beat(time.monotonic_ns())
            time.sleep(BEAT_S)


class Pauses:
    """What the training thread does by itself for long, as it says itself; may be nested."""

    def __init__(self, memory: ProgressMemory) -> None:
        self._memory = memory
        self._depth = 0
        self._began_ns = 0
        self._paused_ns = 0

    @contextlib.contextmanager
    def pause(self, what: str = "") -> Iterator[None]:  # noqa: ARG002  # for who reads the loop
        """Inside, this rank is not taken for one that hangs, unless a signal stops it.

        For what one rank does alone for long: a checkpoint, an evaluation, a call that holds the
        interpreter's lock for seconds. The others wait meanwhile.
        """
        self._depth += 1
        if self._depth == 1:
            self._began_ns = time.monotonic_ns()
            self._memory.paused(self._began_ns)
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._paused_ns += time.monotonic_ns() - self._began_ns
                self._memory.paused(0)

    @contextlib.contextmanager
    def during(self, work: contextlib.AbstractContextManager[T]) -> Iterator[T]:
        """``work`` inside of a pause."""
        with self.pause(), work as found:
            yield found

    def take_s(self) -> float:
        """Seconds in pauses since this was asked last."""
        taken, self._paused_ns = self._paused_ns, 0
        return taken / 1e9
