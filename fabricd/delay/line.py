"""The difference of two clocks as a straight line that follows them slowly. Pure.

A growing-memory filter (the least-squares line through all points so far) that becomes an α-β
filter with fixed gains (Brookner, "Tracking and Kalman Filtering Made Easy", 1998, ch. 1). With a
point a second whose noise is σ, the slope is known to about 0.02 σ a second: 5 µs of noise is
0.1 ppm, so a minute without points costs some 6 µs.
"""

from __future__ import annotations

from dataclasses import dataclass

ALPHA, BETA = 0.12, 0.008
"""Of the steady state: a changed rate (NTP slews by a few ppm) is followed within about 20 s."""


@dataclass(slots=True)
class Line:
    """Level and slope; x in seconds, y in nanoseconds."""

    points: int = 0
    _x: float = 0.0
    _level: float = 0.0
    slope: float = 0.0
    """Nanoseconds a second: 1000 is 1 ppm."""

    def at(self, x: float) -> float:
        """The line there."""
        return self._level + self.slope * (x - self._x)

    def add(self, x: float, y: float, *, weight: float = 1.0) -> None:
        """One more point, behind all others."""
        self.points += 1
        n = self.points
        if n == 1:
            self._x, self._level = x, y
            return
        apart = x - self._x
        if apart <= 0:
            return
        alpha = max(ALPHA, 2 * (2 * n - 1) / (n * (n + 1))) * weight
        beta = max(BETA, 6 / (n * (n + 1))) * weight if n > 2 else 1.0
        if n == 2:
            alpha = 1.0
        rest = y - self.at(x)
        self._level = self.at(x) + alpha * rest
        self.slope += beta * rest / apart
        self._x = x

    def shift(self, by: float) -> None:
        """The level jumps, the slope stays (another route, or a clock that was stepped)."""
        self._level += by

    def restart(self) -> None:
        """Forget all but the slope."""
        self.points = 0
