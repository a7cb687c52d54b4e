"""Flap damping: how long a link that went down has to wait before it may carry traffic again.

The arithmetic is RFC 2439's (BGP route flap damping): a penalty per down, halved every half-life;
above ``suppress`` the link is suppressed until it has decayed below ``reuse``. Only downs count.
The ceiling is the penalty from which ``max_suppress`` of decay leads down to ``reuse``, so no
number of flaps keeps a healthy link away for longer.

No penalty bounds how often a link that flaps slowly goes and comes back: at one flap in 20 s it has
decayed each time. So published transitions (of what traffic may use) are counted too: within any
``window_ns`` there are at most ``max_transitions``, by letting the link return only when the return
and one more down would still fit. A down is never held back.

A second tier counts downs in the last hour: a link above it comes back like any other, but the
operator is told, once until the count has halved.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

HOUR_NS = 3_600 * 10**9
_GRAIN_NS = 10**9
_MINUTE_NS = 60 * 10**9
_MAX_REMEMBERED = 4096
"""An hour of seconds, so that no number of flaps makes the count forget."""


@dataclass(frozen=True, slots=True)
class DampingRules:
    """Parameters; times in nanoseconds."""

    penalty: float = 1000.0
    half_life_ns: int = 15 * 10**9
    suppress: float = 2500.0
    reuse: float = 1000.0
    max_suppress_ns: int = 60 * 10**9
    second_tier_flaps: int = 50
    window_ns: int = 600 * 10**9
    max_transitions: int = 3
    """Published within ``window_ns``; 0: no limit. Fewer than 3 would let no link return."""

    @property
    def ceiling(self) -> float:
        """The highest penalty kept."""
        halvings = self.max_suppress_ns / self.half_life_ns
        return float(self.reuse * 2.0 ** min(halvings, 1000.0))


@dataclass(slots=True)
class Damping:
    """The penalty of one link."""

    rules: DampingRules
    suppressed: bool = False
    told: bool = False
    """The second tier was reported and the count has not halved since."""
    _value: float = 0.0
    _at_ns: int = 0
    _downs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_REMEMBERED))
    """(when, how many) of the last hour."""
    _hour: int = 0
    """How many these are: asked at each evaluation, of a link that may flap all the time."""
    _published: deque[int] = field(default_factory=lambda: deque(maxlen=_MAX_REMEMBERED))
    """When traffic was taken away or given back, oldest first."""

    def penalty(self, now: int) -> float:
        """The penalty at ``now`` (ns); never below 0."""
        age = max(0, now - self._at_ns)
        return self._value * math.pow(0.5, min(age / self.rules.half_life_ns, 1000.0))

    def down(self, now: int, count: int = 1) -> None:
        """The link went down ``count`` times up to ``now``."""
        if count <= 0:
            return
        value = self.penalty(now) + self.rules.penalty * count
        # The ceiling bounds the wait, but must not make suppression unreachable.
        self._value = min(value, max(self.rules.ceiling, self.rules.reuse))
        self._at_ns = now
        if value > self.rules.suppress and self._value > self.rules.reuse:
            self.suppressed = True
        if self._downs and now - self._downs[-1][0] < _GRAIN_NS:
            at, before = self._downs.pop()
            self._downs.append((at, before + count))
            self._hour += count
        else:
            self._remember(now, count)

    def _remember(self, at: int, count: int) -> None:
        if len(self._downs) == _MAX_REMEMBERED:
            self._hour -= self._downs[0][1]
        self._downs.append((at, count))
        self._hour += count

    def is_suppressed(self, now: int) -> bool:
        """Whether the link must still wait at ``now``; remembers that it was reused."""
        if self.suppressed and self.penalty(now) <= self.rules.reuse:
            self.suppressed = False
        return self.suppressed

    def reuse_at(self, now: int) -> int:
        """When (ns) the penalty will have decayed to ``reuse``; ``now`` if not suppressed."""
        value = self.penalty(now)
        if not self.is_suppressed(now) or value <= self.rules.reuse:
            return now
        return now + math.ceil(self.rules.half_life_ns * math.log2(value / self.rules.reuse))

    def published(self, now: int) -> None:
        """What traffic may use changed at ``now``."""
        if self.rules.max_transitions:
            self._published.append(now)

    def publications(self, now: int) -> int:
        """Published transitions within the window."""
        while self._published and self._published[0] <= now - self.rules.window_ns:
            self._published.popleft()
        return len(self._published)

    def return_at(self, now: int) -> int:
        """When (ns) the link may carry again, were it well from now on; ``now`` if at once."""
        at = self.reuse_at(now)
        limit = self.rules.max_transitions
        if limit and (surplus := self.publications(now) - max(0, limit - 2)) > 0:
            at = max(at, self._published[surplus - 1] + self.rules.window_ns)
        return at

    def forgive(self) -> None:
        """An operator vouches for the link: nothing keeps it from returning any more."""
        self._value, self.suppressed = 0.0, False
        self._published.clear()

    def hourly(self, now: int) -> int:
        """Downs within the last hour."""
        while self._downs and self._downs[0][0] < now - HOUR_NS:
            self._hour -= self._downs.popleft()[1]
        return self._hour

    def operator_due(self, now: int) -> bool:
        """True once when the second tier is passed; armed again when the count has halved."""
        count = self.hourly(now)
        if self.told:
            self.told = count * 2 > self.rules.second_tier_flaps
            return False
        if count > self.rules.second_tier_flaps:
            self.told = True
            return True
        return False

    def save(self, now: int) -> dict[str, Any]:
        """A JSON document; ages instead of times, so that it outlives the clock."""
        return {
            "penalty": self.penalty(now),
            "suppressed": self.is_suppressed(now),
            "told": self.told,
            "downs": self._by_minute(now),
            "published": [now - when for when in self._published],
        }

    def _by_minute(self, now: int) -> list[list[int]]:
        """Ages and counts, those of one minute together: a storm is stored fifty times a second.

        Each minute has the age of its newest, so that none is forgotten too early.
        """
        minutes: dict[int, list[int]] = {}
        for when, count in self._downs:
            age = now - when
            minute = minutes.setdefault(age // _MINUTE_NS, [age, 0])
            minute[0], minute[1] = min(minute[0], age), minute[1] + count
        return list(minutes.values())

    def restore(self, document: dict[str, Any], now: int, elapsed_ns: int) -> None:
        """Take over what `save` gave ``elapsed_ns`` ago.

        Raises:
            KeyError, TypeError, ValueError: not such a document.
        """
        downs = [
            (now - int(age) - elapsed_ns, max(0, int(count))) for age, count in document["downs"]
        ]
        published = [now - int(age) - elapsed_ns for age in document.get("published", [])]
        value = float(document["penalty"])
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"penalty {value}")
        self._value = min(value, self.rules.ceiling)
        self._at_ns = now - max(0, elapsed_ns)
        self.suppressed = bool(document["suppressed"])
        self.told = bool(document["told"])
        for at, count in downs:
            self._remember(at, count)
        self._published.extend(sorted(published))
