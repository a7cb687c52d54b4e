"""How fast each user's lines are read: a token bucket by uid. Pure."""

from __future__ import annotations

from collections.abc import Callable

RATE = 2 << 20
"""Bytes a second. The event loop parses a byte in some 10 ns, so one user takes 2 % of it."""
BURST = 1 << 20
LEAST = 16_384
"""What a line costs at least: 128 short ones a second."""
MOST_USERS = 4096


class Pace:
    """``clock`` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[int, tuple[float, float]] = {}
        """uid → (bytes over what was earned by then, when)."""

    def delay_s(self, uid: int, size: int) -> float:
        """Seconds to wait after having read a line of ``size`` bytes."""
        now = self._clock()
        spent, then = self._spent.pop(uid, (0.0, now))
        spent = max(0.0, spent - (now - then) * RATE) + max(size, LEAST)
        self._spent[uid] = spent, now
        if len(self._spent) > MOST_USERS:
            del self._spent[next(iter(self._spent))]
        return max(0.0, spent - BURST) / RATE
