"""How many new jobs a host may name in a time, and each of its users. Pure.

Each new name becomes a job here, with records, a state that is shown for a while, and orders. A
name that is refused counts nothing; its host says it again with its next document.
"""

from __future__ import annotations

from collections.abc import Hashable

from telemetry.broker.guard import MOST_NAMES

HOST_RATE, HOST_BURST = 0.2, float(MOST_NAMES)
"""New names a second of one host, and so many at once: a fabric-compute that starts hears all."""
USER_RATE, USER_BURST = HOST_RATE / 4, HOST_BURST / 2
"""Of one user of a host: whoever spends this takes no other user's share."""
SWEEP_EVERY = 1024


class NameBudget:
    """A token bucket for each host, and one for each of its users."""

    def __init__(self) -> None:
        self._hosts = _Buckets(HOST_RATE, HOST_BURST)
        self._users = _Buckets(USER_RATE, USER_BURST)

    def has_room(self, host: str, uid: int | None, now: float) -> bool:
        """Whether ``uid`` may have one more on ``host``. ``now``: monotonic seconds."""
        return self._hosts.has_room(host, now) and self._users.has_room((host, uid), now)

    def spend(self, host: str, uid: int | None, now: float) -> None:
        """A new name counts."""
        self._hosts.spend(host, now)
        self._users.spend((host, uid), now)

    def __len__(self) -> int:
        """Buckets that are remembered, by hosts and users."""
        return len(self._hosts.spent) + len(self._users.spent)


class _Buckets:
    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self.spent: dict[Hashable, tuple[float, float]] = {}
        """Whose → (what is not earned again by then, when)."""
        self._until_sweep = SWEEP_EVERY

    def has_room(self, whose: Hashable, now: float) -> bool:
        return self._owed(whose, now) + 1 <= self._burst

    def spend(self, whose: Hashable, now: float) -> None:
        self.spent[whose] = self._owed(whose, now) + 1, now
        self._until_sweep -= 1
        if not self._until_sweep:
            self._until_sweep = SWEEP_EVERY
            self.spent = {one: self.spent[one] for one in self.spent if self._owed(one, now)}

    def _owed(self, whose: Hashable, now: float) -> float:
        spent, then = self.spent.get(whose, (0.0, now))
        return max(0.0, spent - (now - then) * self._rate)
