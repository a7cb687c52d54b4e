"""Which path's two ways differ, from what paths say beyond the mesh. Pure.

A path that is ``a`` longer one way than the other puts its two clocks ``a / 2`` apart that are not.
Least squares spreads that over the mesh: a part stays with the path (its *surplus*), the rest bends
its ends and shows, with the opposite sign, on their other paths. So only the path that explains
what is seen is blamed, one at a time (Baarda's data snooping: A testing procedure for use in
geodetic networks, 1968): at both its ends it is the one that departs most from what the end's other
paths say, by about as much, with opposite signs. What all paths of a host have in common is no
surplus at all: loops cannot see it, and the bound keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from clocksync.pair.model import SECOND


@dataclass(frozen=True, slots=True)
class AsymmetryRules:
    """Parameters."""

    least_ns: float = 100.0
    """Less is not worth a name: some 20 m of cable one way, and paths' biases are 2 to 13 ns."""
    sigmas: float = 5.0
    """Nor is what is less than so many standard deviations of what is seen."""
    floor_ns: float = 5.0
    """Least standard deviation: what stays of every path's own bias."""
    degree: int = 3
    """Paths of an end, the one in question included. Of two, either may be the wrong one."""
    alike: float = 3.0
    """Most by which the two ends' figures differ, as a ratio."""
    warm: int = 100
    """Looks, ten a second, before a mean is one."""
    fresh_ns: int = 3 * SECOND
    """What the other end says is used for so long."""


SHARE = 0.02
"""Of a look in the mean: 5 s at ten a second."""


@dataclass(slots=True)
class Surplus:
    """What a path says beyond the mesh, smoothed, and how much that scatters."""

    mean_ns: float = 0.0
    variance: float = 0.0
    looks: int = 0
    at_ns: int = 0
    """Our clock, of the last look."""

    def look(self, off_ns: float, now_ns: int) -> None:
        """One more (West's update, CACM 1979, with a memory)."""
        self.looks += 1
        share = max(SHARE, 1.0 / self.looks)
        off = off_ns - self.mean_ns
        self.mean_ns += share * off
        self.variance = (1 - share) * (self.variance + share * off * off)
        self.at_ns = now_ns


class Blame(NamedTuple):
    """What the host at the other end says of a path."""

    surplus_ns: float
    at_ns: int
    """Our clock, when that came."""


class Evidence(NamedTuple):
    """Of one path, at one moment."""

    surplus: Surplus
    blame: Blame | None
    named: bool
    """Known already: it is no measure for others."""


class Finding(NamedTuple):
    """How far a path departs from what the others of this end say."""

    ns: float
    """Positive: our way out is the longer one; half of the difference."""
    most_ns: float
    """More is too much."""
    suspected: bool
    """No other path of this end departs as far, and it is too much."""
    agreed: bool
    """The other end says so too."""


def judge(paths: Mapping[int, Evidence], now_ns: int, rules: AsymmetryRules) -> dict[int, Finding]:
    """Findings by path, of those of which something can be said.

    Args:
        paths: all of this end.
        now_ns: our clock.
        rules: parameters.
    """
    seen = {
        path: evidence for path, evidence in paths.items()
        if evidence.surplus.looks >= rules.warm and now_ns - evidence.surplus.at_ns <= SECOND
    }  # fmt: skip
    found: dict[int, Finding] = {}
    for path, (surplus, _, _) in seen.items():
        others = [e.surplus for other, e in seen.items() if other != path and not e.named]
        if len(others) < rules.degree - 1:
            continue
        ns = surplus.mean_ns - median(other.mean_ns for other in others)
        # Of a median of normal values: 1.25 standard errors of their mean.
        spread = 1.57 * sum(other.variance for other in others) / len(others) ** 2
        sigma = math.sqrt(surplus.variance + spread + rules.floor_ns**2)
        found[path] = Finding(ns, max(rules.least_ns, rules.sigmas * sigma), False, False)
    free = [path for path in found if not seen[path].named]
    worst = max(free, key=lambda path: abs(found[path].ns), default=None)
    if worst is not None and abs(found[worst].ns) > found[worst].most_ns:
        here, blame = found[worst], seen[worst].blame
        agreed = (
            blame is not None
            and now_ns - blame.at_ns <= rules.fresh_ns
            and blame.surplus_ns * here.ns < 0
            and 1 / rules.alike <= abs(blame.surplus_ns / here.ns) <= rules.alike
        )
        found[worst] = here._replace(suspected=True, agreed=agreed)
    return found
