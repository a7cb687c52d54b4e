"""Flap damping: how long a link that went down has to wait before it may carry traffic again.

The arithmetic is RFC 2439's (BGP route flap damping): a penalty per down, halved every half-life;
above ``suppress`` the link is suppressed until it has decayed below ``reuse``. Only downs count.
The ceiling is the penalty from which ``max_suppress`` of decay leads down to ``reuse``, so no
number of flaps keeps a healthy link away for longer.

A second tier counts downs in the last hour: a link above it comes back like any other, but the
operator is told, once until the count has halved.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

HOUR_NS = 3_600 * 10**9
_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class DampingRules:
    """Parameters; times in nanoseconds."""

    penalty: float = 1000.0
    half_life_ns: int = 15 * 10**9
    suppress: float = 2500.0
    reuse: float = 1000.0
    max_suppress_ns: int = 60 * 10**9
    second_tier_flaps: int = 50

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
        self._downs.append((now, count))

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

    def hourly(self, now: int) -> int:
        """Downs within the last hour."""
        while self._downs and self._downs[0][0] < now - HOUR_NS:
            self._downs.popleft()
        return sum(count for _, count in self._downs)

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
            "downs": [[now - when, count] for when, count in self._downs],
        }

    def restore(self, document: dict[str, Any], now: int, elapsed_ns: int) -> None:
        """Take over what `save` gave ``elapsed_ns`` ago.

        Raises:
            KeyError, TypeError, ValueError: not such a document.
        """
        downs = [
            (now - int(age) - elapsed_ns, max(0, int(count))) for age, count in document["downs"]
        ]
        value = float(document["penalty"])
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"penalty {value}")
        self._value = min(value, self.rules.ceiling)
        self._at_ns = now - max(0, elapsed_ns)
        self.suppressed = bool(document["suppressed"])
        self.told = bool(document["told"])
        self._downs.extend(downs)
