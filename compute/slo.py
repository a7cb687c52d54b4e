"""How many failures cost no progress, and what that proves. Pure.

The objective: at least ``OBJECTIVE`` of all failures lose no step. With confidence 95 % it is met
when the lower bound of the exact binomial interval (Clopper and Pearson, 1934, one-sided) reaches
it: after 29 failures without a miss at the earliest, for 0.9**29 < 0.05 <= 0.9**28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from compute.failures import Failure

OBJECTIVE = 0.9
CONFIDENCE = 0.95
_STEPS = 100


def lower_bound(successes: int, failures: int, confidence: float = CONFIDENCE) -> float:
    """The least probability of a success that fits ``successes`` of ``failures``."""
    _check(successes, failures)
    if successes == 0:
        return 0.0
    return _solve(lambda p: 1 - _cdf(successes - 1, failures, p) < 1 - confidence)


def upper_bound(successes: int, failures: int, confidence: float = CONFIDENCE) -> float:
    """The greatest probability of a success that fits ``successes`` of ``failures``."""
    _check(successes, failures)
    if successes == failures:
        return 1.0
    return _solve(lambda p: _cdf(successes, failures, p) > 1 - confidence)


def _check(successes: int, failures: int) -> None:
    if not 0 <= successes <= failures:
        raise ValueError(f"{successes} of {failures}")


def _solve(is_below: Callable[[float], bool]) -> float:
    """Where ``is_below``, true near 0 and false near 1, changes."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def _cdf(most: int, n: int, p: float) -> float:
    """P(X <= most) of a binomial distribution."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return float(most >= n)
    # The shorter tail: sums of few terms are exact enough.
    if most < n / 2:
        return min(1.0, math.fsum(_pmf(k, n, p) for k in range(most + 1)))
    return max(0.0, 1 - math.fsum(_pmf(k, n, p) for k in range(most + 1, n + 1)))


def _pmf(k: int, n: int, p: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))


@dataclass(frozen=True)
class Share:
    """Failures of one kind, and how many of them lost no step."""

    name: str
    failures: int
    kept: int

    @property
    def verdict(self) -> str:
        """``met``, ``broken``, or ``not enough data``."""
        if lower_bound(self.kept, self.failures) >= OBJECTIVE:
            return "met"
        if upper_bound(self.kept, self.failures) < OBJECTIVE:
            return "broken"
        return "not enough data"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "name": self.name,
            "failures": self.failures,
            "no_progress_lost": self.kept,
            "at_least": round(lower_bound(self.kept, self.failures), 4),
            "at_most": round(upper_bound(self.kept, self.failures), 4),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Report:
    """``shares``: all failures first, then the protected ones, then each class."""

    shares: tuple[Share, ...]
    pauses_s: tuple[float, ...]
    """Of recoveries, sorted."""
    steps_lost: int
    gpu_seconds: float

    @property
    def verdict(self) -> str:
        """Over all failures."""
        return self.shares[0].verdict

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "objective": OBJECTIVE,
            "confidence": CONFIDENCE,
            "verdict": self.verdict,
            "shares": [share.as_json() for share in self.shares],
            "pause_s": {
                "median": quantile(self.pauses_s, 0.5),
                "p99": quantile(self.pauses_s, 0.99),
                "longest": self.pauses_s[-1] if self.pauses_s else None,
            },
            "steps_lost": self.steps_lost,
            "gpu_seconds": round(self.gpu_seconds, 3),
        }


def quantile(ordered: tuple[float, ...], q: float) -> float | None:
    """The nearest-rank quantile of sorted values; None: there are none."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def report(failures: Iterable[Failure]) -> Report:
    """What these failures say."""
    known = list(failures)
    # A planned move is no failure; it has a row of its own.
    counted = [one for one in known if one.failure_class != "planned"]
    groups = {"all": counted, "protected": [one for one in counted if one.protected]}
    for name in sorted({one.failure_class for one in known}):
        groups[f"class {name}"] = [one for one in known if one.failure_class == name]
    shares = tuple(
        Share(name, len(group), sum(one.kept_progress for one in group))
        for name, group in groups.items()
    )
    return Report(
        shares,
        tuple(sorted(one.pause_s for one in known if one.pause_s is not None)),
        sum(one.steps_lost for one in known),
        sum(one.gpu_seconds for one in known),
    )
