"""How much of one host's events is kept: no host fills the ledger that all share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

LARGEST = 8192
"""Bytes of one event, as JSON."""
RATE, BURST = 1024.0, float(4 << 20)
"""Bytes a second of one host, and so many at once: a host that comes back sends what it has kept.
An event has some 300."""


class EventBudget:
    """A token bucket for each host, and what was left out."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        """Host → (bytes that it has not earned again by then, when)."""
        self._left_out: Counter[str] = Counter()

    def spend(self, host: str, size: int, now: float) -> bool:
        """Whether an event of ``size`` bytes is kept. ``now``: monotonic seconds."""
        spent, then = self._spent.get(host, (0.0, now))
        spent = max(0.0, spent - (now - then) * RATE)
        kept = size <= LARGEST and spent + size <= BURST
        self._spent[host] = (spent + size if kept else spent, now)
        if not kept:
            self._left_out[host] += 1
        return kept

    def take_left_out(self, now: float) -> dict[str, int]:
        """Host → events that were left out since the last call. Idle hosts are forgotten."""
        left = dict(sorted(self._left_out.items()))
        self._left_out.clear()
        self._spent = {
            host: (spent, then)
            for host, (spent, then) in self._spent.items()
            if spent > (now - then) * RATE
        }
        return left

    def put_back(self, left: Mapping[str, int]) -> None:
        """It could not be recorded."""
        self._left_out.update(left)
