"""Counts what is refused, and says so in the log, not more than once in a while for each reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog

QUIET_S = 10.0
REASONS = (
    "topic", "envelope", "replayed", "data", "order", "connections", "line", "registration",
    "document", "rows", "broker",
)  # fmt: skip


class Refusals:
    """By reason, one of `REASONS`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: ``clock``: seconds, monotonic."""
        self.counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._clock = clock
        self._quiet_until: dict[str, float] = {}
        self._log = structlog.get_logger()

    def add(self, reason: str, detail: str) -> None:
        """One more; nothing else has changed by it."""
        self.counts[reason] += 1
        now = self._clock()
        if now >= self._quiet_until.get(reason, 0.0):
            self._quiet_until[reason] = now + QUIET_S
            self._log.warning("refused", what=reason, why=detail[:500], so_far=self.counts[reason])
