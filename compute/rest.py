"""How long to rest after work, so that it takes a limited share of a core on the long run. Pure."""

from __future__ import annotations

SHARE = 0.15
BURST_S = 1.0
"""Of work that is done without a rest: the decisions of one recovery."""


class Rest:
    """A token bucket of seconds of work."""

    def __init__(self, *, share: float = SHARE, burst_s: float = BURST_S) -> None:
        self._share, self._burst_s = share, burst_s
        self._debt = 0.0
        self._at: float | None = None

    def after(self, spent: float, now: float) -> float:
        """Seconds to rest after ``spent`` seconds of work that end at ``now``, monotonic."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._debt = max(0.0, self._debt - passed * self._share) + spent
        self._at = now
        return max(0.0, self._debt - self._burst_s) / self._share
