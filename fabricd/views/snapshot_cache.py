"""The host's snapshot for the metrics endpoint, made on the daemon's loop when it is asked for.

The endpoint has a thread and a loop of its own; the host's state belongs to the daemon's loop.
While that loop does not answer, the endpoint shows the last snapshot with its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future

from telemetry.snapshot import HostSnapshot

FRESH_S = 1.0
"""Whoever asks sooner again gets the same: making one takes the loop a millisecond or two."""
PATIENCE_S = 2.0
"""A loop that is well answers within one of its steps; Prometheus waits for 10 s."""


class SnapshotCache:
    """Called on any loop of this process."""

    def __init__(
        self,
        make: Callable[[], HostSnapshot],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Made in the thread of ``loop``.

        Args:
            make: gives a snapshot; called in that thread only.
            loop: the daemon's.
            clock: seconds.
        """
        self._make, self._loop, self._clock = make, loop, clock
        self._last = make()
        self._made_s = clock()

    async def __call__(self) -> HostSnapshot:
        """The host as it is, or as it was when the daemon's loop last answered.

        Raises:
            Exception: whatever ``make`` raised; the daemon's loop goes on.
        """
        if self._clock() - self._made_s >= FRESH_S:
            done: Future[None] = Future()
            try:
                self._loop.call_soon_threadsafe(self._renew, done)
            except RuntimeError:  # It is closed: the daemon ends.
                return self._last
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(done), PATIENCE_S)
        return self._last

    def _renew(self, done: Future[None]) -> None:
        if not done.set_running_or_notify_cancel():
            return  # Nobody waits any more.
        try:
            # Several may have asked before the loop came to it.
            if self._clock() - self._made_s >= FRESH_S:
                self._last = self._make()
                self._made_s = self._clock()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)
