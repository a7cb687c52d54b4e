"""Alternating rounds, and what is made of them. Pure, but for the clock of whoever is measured.

Everything that is compared is measured in turn within a round, each round begins with another one,
and a comparison is the median of the rounds' own ratios: what disturbs a shared machine for seconds
then hits both sides of a ratio, and who comes first has no part in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def alternate(
    rounds: int,
    ways: Mapping[str, Callable[[], T]],
    measure: Callable[[Callable[[], T]], T] = lambda way: way(),
) -> dict[str, list[T]]:
    """Measure every way once a round; results by way, in order of the rounds.

    ``measure`` calls a way, and may call it again (`bench.plugin.quiet`).

    Raises:
        ValueError: no round or no way.
    """
    if rounds < 1 or not ways:
        raise ValueError(f"{rounds} rounds of {len(ways)} ways: nothing to measure")
    names = list(ways)
    taken: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            taken[name].append(measure(ways[name]))
    return taken


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of ours / theirs.

    Raises:
        ValueError: not as many of one as of the other, none, or theirs is 0.
    """
    _check(ours, theirs)
    if not all(theirs):
        raise ValueError("the peer measured 0: there is nothing to compare with")
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of ours - theirs.

    Raises:
        ValueError: not as many of one as of the other, or none.
    """
    _check(ours, theirs)
    return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))


def interval(values: Sequence[float], chance: float = 0.05) -> tuple[float, float]:
    """Where the median is of what ``values`` are a sample of, but for ``chance`` on each side.

    Order statistics (the sign test turned around), so nothing is asked of the distribution. With
    too few values their lowest and highest.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    ordered, count = sorted(values), len(values)
    below, left_out = 0.0, 0
    for heads in range(count // 2):
        below += math.comb(count, heads) / 2**count  # so few of ``count`` values below the median
        if below > chance:
            break
        left_out = heads
    return ordered[left_out], ordered[count - 1 - left_out]


def _check(ours: Sequence[float], theirs: Sequence[float]) -> None:
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} rounds beside {len(theirs)}")


def spread(values: Sequence[float]) -> str:
    """``median (lowest to highest)``."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def beside(samples: Mapping[str, Sequence[float]], unit: str) -> str:
    """For the note of a row: the spread of every way, and of how many rounds."""
    count = len(next(iter(samples.values())))
    each = "; ".join(f"{name} {spread(values)}" for name, values in samples.items())
    return f"{each} {unit}; {count} rounds"
