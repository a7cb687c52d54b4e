"""What each user may do in a time: a token bucket by uid. Pure.

By default in bytes: how fast lines are read.
"""

from __future__ import annotations

from collections.abc import Callable

RATE = 2 << 20
"""Bytes a second. The event loop parses a byte in some 10 ns, so one user takes 2 % of it."""
BURST = 1 << 20
LEAST = 16_384
"""What a line costs at least: 128 short ones a second."""
MOST_USERS = 4096


class Pace:
    """Earns ``rate`` a second, up to ``burst``; one thing costs ``least`` at least."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        rate: float = RATE,
        burst: float = BURST,
        least: float = LEAST,
    ) -> None:
        """Args: ``clock``: seconds, monotonic."""
        self._clock = clock
        self._rate, self._burst, self._least = rate, burst, least
        self._spent: dict[int, tuple[float, float]] = {}
        """uid → (what was spent by then and is not earned again, when)."""

    def delay_s(self, uid: int, size: float) -> float:
        """Spend ``size``; returns the seconds to wait until that is earned."""
        now = self._clock()
        spent, then = self._spent.pop(uid, (0.0, now))
        spent = max(0.0, spent - (now - then) * self._rate) + max(size, self._least)
        self._spent[uid] = spent, now
        if len(self._spent) > MOST_USERS:
            del self._spent[next(iter(self._spent))]
        return max(0.0, spent - self._burst) / self._rate

    def takes(self, uid: int, size: float) -> bool:
        """Spend ``size`` if that is earned by now; False: nothing is spent."""
        now = self._clock()
        spent, then = self._spent.get(uid, (0.0, now))
        if max(0.0, spent - (now - then) * self._rate) + max(size, self._least) > self._burst:
            return False
        self.delay_s(uid, size)
        return True
