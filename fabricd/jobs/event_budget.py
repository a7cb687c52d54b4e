"""How many events of stats pages become rows of the timeline: a rate for each owner. Pure.

Pages are hostile. A user that floods its own page loses its own rows, and one row a minute says how
many were left out, and of whom most.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

BURST, PER_S = 2000, 5.0
"""Rows of one owner at once, and from then on. One flap under a large job is some hundred rows, and
damping lets a link return three times in ten minutes."""
TELL_NS = 60 * 10**9
MOST_OWNERS = 1024


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What was not recorded since the last such report.

    Attributes:
        events: of all owners.
        uid: the owner of most of them.
        of_uid: how many of that owner.
    """

    events: int
    uid: int
    of_uid: int


class EventBudget:
    """One bucket of tokens for each owner (uid)."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[float, int]] = {}
        """Owner → tokens, and when they were counted."""
        self._left_out: Counter[int] = Counter()
        self._told_ns: int | None = None

    def take(self, uid: int, wanted: int, room: int, now: int) -> int:
        """How many of an owner's events may be recorded now; the others count as left out.

        Args:
            uid: of the owner.
            wanted: its events.
            room: for how many there is room in this scan.
            now: CLOCK_MONOTONIC ns.
        """
        tokens, at = self._buckets.pop(uid, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - at) / 1e9 * PER_S)
        granted = min(wanted, room, int(tokens))
        self._buckets[uid] = tokens - granted, now
        if len(self._buckets) > MOST_OWNERS:
            del self._buckets[next(iter(self._buckets))]  # That of the longest silence.
        if wanted > granted:
            self._left_out[uid] += wanted - granted
        return granted

    def left_out(self, now: int) -> LeftOut | None:
        """What to tell now; None: nothing, or it was told less than a minute ago."""
        if not self._left_out or (self._told_ns is not None and now - self._told_ns < TELL_NS):
            return None
        ((uid, of_uid),) = self._left_out.most_common(1)
        out = LeftOut(self._left_out.total(), uid, of_uid)
        self._left_out.clear()
        self._told_ns = now
        return out
