"""From one life of the clock service to the next. Pure.

The page outlives the service (it lies in /run, so not the host's boot), and its line goes on by
itself: in holdover, with a bound that grows. A service that has just started knows less than the
page does, so it leaves the page alone until it has a time of its own. If both are the same time
within their bounds, the epoch goes on too. A host that hears nobody begins a mesh, of which it is
the reference; but were it not for the restart, it would hold over another host's time, and so it
does.
"""

from __future__ import annotations

from dataclasses import replace

from clocksync.page.clock_page import ClockError, Line, State


class RestartHandover:
    """What an earlier service left, until the new one knows better."""

    def __init__(self, before: Line | None, now_ns: int) -> None:
        """Args: ``before``: the page's line; ``now_ns``: the clock that it lies over."""
        alike = before is not None and before.raw_ns <= now_ns
        self._before = before if alike else None
        self._epochs: tuple[int, int] | None = None
        """An epoch of the core, and what it is called on the page."""

    def drop(self) -> None:
        """The line says nothing any more: the clock under it is another."""
        self._before = None

    def rate(self, otherwise: float) -> float:
        """Of the time that the page had, over the clock that it lies over, less one."""
        before = self._before
        return otherwise if before is None or before.state is State.UNSYNCED else before.slope

    def wall_ns(self, now_ns: int, wall_ns: int) -> int:
        """For a host that begins a mesh: the time that it had, or else the wall clock."""
        if self._before is None:
            return wall_ns
        try:
            return self._before.at(now_ns).ns
        except ClockError:
            return wall_ns

    def cross(self, line: Line, now_ns: int, *, alone: bool = False) -> Line | None:
        """What to publish; None: the page stays as it is.

        Args:
            line: the core's.
            now_ns: our clock.
            alone: no neighbour is heard: the time is nobody's but our own.
        """
        before = self._before
        others = before is not None and alone and before.reference != line.reference
        if before is not None and (line.state is State.UNSYNCED or others):
            try:
                before.at(now_ns)
            except ClockError:
                self._before = None
                return line
            return None
        if before is not None:
            self._before = None
            try:
                was = before.at(now_ns)
            except ClockError:
                return line
            if abs(line.at(now_ns).ns - was.ns) <= line.bound_ns + was.bound_ns:
                self._epochs = line.epoch, before.epoch
        if self._epochs is not None and line.epoch == self._epochs[0]:
            return replace(line, epoch=self._epochs[1])
        return line
