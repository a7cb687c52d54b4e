"""A witness of a machine that is overloaded: how long this process was kept from running."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_BEAT_S = 0.005


class StallWatchdog:
    """In the ``with`` block a thread sleeps again and again; `longest_s` is how late it woke."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StallWatchdog:
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

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            if self._stop.wait(_BEAT_S):
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began - _BEAT_S)
