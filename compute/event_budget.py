"""How much of what one host says is kept: no host fills the ledger that all share. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

LARGEST = 8192
"""Bytes of one event, as `stored_bytes` counts them."""
ENTRY_BYTES = 300
"""What an entry of the ledger has besides its fields: two hashes, numbers, time, an index."""
RATE, BURST = 1024.0, float(4 << 20)
"""Bytes a second of one host, and so many at once: a host that comes back sends what it has kept.
An event takes some 700."""
TELL_S = 60.0
"""Between two words about what was left out: they go into the ledger, too."""


def stored_bytes(event_id: str, fields: str) -> int:
    """What an event takes on the disk. ``fields``: JSON. Its id is kept for ever, and indexed."""
    return len(fields) + 2 * len(event_id) + ENTRY_BYTES


class EventBudget:
    """A token bucket for each host, and what was left out."""

    def __init__(self, *, largest: float = LARGEST) -> None:
        """``largest``: bytes of one event."""
        self._largest = largest
        self._spent: dict[str, tuple[float, float]] = {}
        """Host → (bytes that it has not earned again by then, when)."""
        self._left_out: Counter[str] = Counter()
        self._told_at = -math.inf

    def spend(self, host: str, size: int, now: float) -> bool:
        """Whether an event of ``size`` bytes is kept. ``now``: monotonic seconds."""
        spent = self.owed(host, now)
        kept = size <= self._largest and spent + size <= BURST
        self._spent[host] = (spent + size if kept else spent, now)
        if not kept:
            self.leave_out(host)
        return kept

    def owed(self, host: str, now: float) -> float:
        """Bytes that it has spent and not earned again. ``now``: monotonic seconds."""
        spent, then = self._spent.get(host, (0.0, now))
        return max(0.0, spent - (now - then) * RATE)

    def leave_out(self, host: str) -> None:
        """Count one that is not kept for another reason."""
        self._left_out[host] += 1

    def take_left_out(self, now: float) -> dict[str, int]:
        """Host → events that were left out since they were told last; {} within ``TELL_S``.

        Idle hosts are forgotten. ``now``: monotonic seconds.
        """
        self._spent = {
            host: (spent, then)
            for host, (spent, then) in self._spent.items()
            if spent > (now - then) * RATE
        }
        if not self._left_out or now < self._told_at + TELL_S:
            return {}
        left = dict(sorted(self._left_out.items()))
        self._left_out.clear()
        self._told_at = now
        return left

    def put_back(self, left: Mapping[str, int]) -> None:
        """It could not be recorded: it is told at the next call."""
        self._left_out.update(left)
        self._told_at -= TELL_S
