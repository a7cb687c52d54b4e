"""The pause before the next attempt to connect: exponential backoff with full jitter. Pure.

Full jitter spreads the hosts of a cluster evenly when a broker comes back, so that they do not
all connect at once (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).

A broker that is not there is asked more often than one that does not answer in time: the kernel
refuses without any work of a broker's, and a training job may wait for what its hosts have to say.
"""

from __future__ import annotations

from collections.abc import Callable


class FullJitter:
    """``random`` gives numbers in [0, 1)."""

    def __init__(
        self,
        random: Callable[[], float],
        *,
        base_s: float = 0.25,
        cap_s: float = 10.0,
        absent_cap_s: float = 2.0,
    ) -> None:
        self._random = random
        self._base_s, self._cap_s, self._absent_cap_s = base_s, cap_s, absent_cap_s
        self._failures = 0

    def next_s(self, *, absent: bool = False) -> float:
        """Seconds to wait after one more failed attempt. ``absent``: nobody was there."""
        cap_s = self._absent_cap_s if absent else self._cap_s
        limit = min(cap_s, self._base_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return limit * self._random()

    def succeeded(self) -> None:
        """A connection lasted: the next pause is a short one."""
        self._failures = 0
