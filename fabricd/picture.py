"""The host as the metrics endpoint shows it: made when somebody asks, where everything runs.

A scrape comes in a thread of its own, and what it asks for belongs to the event loop. So the loop
is asked, and as of a loop that does not answer the last picture is shown: its time says how old.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from telemetry.snapshot import HostSnapshot

FRESH_S = 1.0
"""Whoever asks sooner again gets the same: making one takes the loop a millisecond or two."""
PATIENCE_S = 2.0
"""A loop that is well answers within one of its steps; Prometheus waits for 10 s."""


class Picture:
    """Called by any thread."""

    def __init__(
        self,
        make: Callable[[], HostSnapshot],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Made in the loop's thread.

        Args:
            make: gives a picture; called in the loop's thread only.
            loop: where.
            clock: seconds.
        """
        self._make, self._loop, self._clock = make, loop, clock
        self._last = make()
        self._made_s = clock()

    def __call__(self) -> HostSnapshot:
        """The host as it is, or as it was when the loop last answered."""
        if self._clock() - self._made_s >= FRESH_S:
            done = threading.Event()
            try:
                self._loop.call_soon_threadsafe(self._renew, done)
            except RuntimeError:  # It is closed: the daemon ends.
                return self._last
            done.wait(PATIENCE_S)
        return self._last

    def _renew(self, done: threading.Event) -> None:
        # Several may have asked before the loop came to it.
        if self._clock() - self._made_s >= FRESH_S:
            self._last = self._make()
            self._made_s = self._clock()
        done.set()
