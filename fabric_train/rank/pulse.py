"""Since when a rank works by itself, and nothing of it is under way with others. Pure.

A rank that hangs in its own code is told by that: all others wait for it, and it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable


class Pulse:
    """``tell`` gets since when this rank works by itself, nanoseconds, monotonic; 0: it waits.

    It counts as waiting in a gate, in a recovery, and until its first step has passed the gate.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._works = False
        """Between two gates of a job that steps."""
        self._pending = 0

    def works(self, now_ns: int) -> None:
        """A step begins."""
        self._works, self._pending = True, 0
        self._tell(now_ns)

    def waits(self) -> None:
        """This rank has done its part of a step, or recovers."""
        self._works = False
        self._tell(0)

    def started(self) -> None:
        """A collective is under way."""
        if self._works:
            self._pending += 1
            self._tell(0)

    def ended(self, now_ns: int) -> None:
        """A collective has ended."""
        if self._works and self._pending:
            self._pending -= 1
            if not self._pending:
                self._tell(now_ns)
