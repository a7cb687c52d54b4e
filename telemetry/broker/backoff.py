"""The pause before the next attempt to connect: exponential backoff with full jitter. Pure.

Full jitter spreads the hosts of a cluster evenly when a broker comes back, so that they do not
all connect at once (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).
"""

from __future__ import annotations

from collections.abc import Callable


class FullJitter:
    """``random`` gives numbers in [0, 1)."""

    def __init__(
        self, random: Callable[[], float], *, base_s: float = 0.25, cap_s: float = 10.0
    ) -> None:
        self._random = random
        self._base_s, self._cap_s = base_s, cap_s
        self._failures = 0

    def next_s(self) -> float:
        """Seconds to wait after one more failed attempt."""
        limit = min(self._cap_s, self._base_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return limit * self._random()

    def succeeded(self) -> None:
        """A connection lasted: the next pause is a short one."""
        self._failures = 0
