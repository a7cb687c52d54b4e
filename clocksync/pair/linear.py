"""A time as a straight line over a clock, in whole nanoseconds and parts of one. Pure.

Times are 19 digits long and a float has 16, so whole nanoseconds are kept apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_MOST = 1 - 2**-40


def split(value: float, ns: int = 0) -> tuple[int, float]:
    """A sum of nanoseconds as a whole number and a part in [0, 1)."""
    whole = math.floor(value)
    part = value - whole
    return ns + whole, min(_MOST, part)


class Linear(NamedTuple):
    """A time as a line over a clock."""

    at_ns: int
    """The clock: the line's origin."""
    ns: int
    """The time there,"""
    part: float
    """and so much more, in [0, 1)."""
    slope: float
    """Nanoseconds of the time per nanosecond of the clock, less one."""

    def ahead(self, at_ns: int, ns: int) -> float:
        """How far this time is ahead of ``ns`` at ``at_ns``."""
        age = at_ns - self.at_ns
        return float(self.ns + age - ns) + self.part + self.slope * age

    def moved(self, at_ns: int, by_ns: float = 0.0, slope: float | None = None) -> Linear:
        """The same line from another moment on, ``by_ns`` further ahead."""
        age = at_ns - self.at_ns
        ns, part = split(self.part + self.slope * age + by_ns, self.ns + age)
        return Linear(at_ns, ns, part, self.slope if slope is None else slope)
