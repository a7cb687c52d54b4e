"""Two clocks and the ways between them as a Kalman filter has them. Pure.

Three unknowns: how far apart the clocks are, how fast that changes, and how much longer than usual
both ways are. The rate goes as a random walk, as crystals' do (Galleani and Tavella, "Time and the
Kalman filter", IEEE Control Systems 2010). The length of the ways breathes: a host whose caches
are cold, or whose core runs slower, takes longer for packets both ways, for seconds (an
Ornstein-Uhlenbeck process: drawn to what is usual, and pushed off it all the time). Both ways seen
together tell clocks and length apart; of one way alone only the sum is seen, so that a way that is
shorter for a while does not pass for a clock.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from clocksync.pair import SECOND, WALK


class Covariance(NamedTuple):
    """Of offset (a, ns), rate (b, ns/s) and length (c, ns)."""

    aa: float
    ab: float
    ac: float
    bb: float
    bc: float
    cc: float


class Breath(NamedTuple):
    """How the length of ways changes."""

    deviation_ns: float
    calm_s: float
    """In so long it is drawn to the usual by all but 1/e."""


class State(NamedTuple):
    """What is known at a moment."""

    at_ns: int
    """Our clock."""
    ns: float
    """The peer's clock minus ours, beyond the base."""
    rate: float
    """Nanoseconds a second."""
    longer: float
    """Each way takes so many nanoseconds more than usual."""
    spread: Covariance

    def led(self, now_ns: int, breath: Breath) -> State:
        """The same later."""
        passed, walk = (now_ns - self.at_ns) / SECOND, (WALK * SECOND) ** 2
        left = math.exp(-passed / breath.calm_s)
        aa, ab, ac, bb, bc, cc = self.spread
        return State(
            now_ns, self.ns + self.rate * passed, self.rate, left * self.longer,
            Covariance(
                aa + passed * (2 * ab + bb * passed) + walk * passed**3 / 3,
                ab + passed * bb + walk * passed**2 / 2,
                left * (ac + passed * bc),
                bb + walk * passed,
                left * bc,
                left**2 * cc + (1 - left**2) * breath.deviation_ns**2,
            ),
        )  # fmt: skip

    def offset(self, lag: float) -> float:
        """How far apart the clocks were ``lag`` seconds later (less than 0: before), ns."""
        return self.ns + self.rate * lag

    def deviation(self, lag: float = 0.0) -> float:
        """Standard deviation of that, by this state alone, ns."""
        return math.sqrt(self.spread.aa + lag * (2 * self.spread.ab + self.spread.bb * lag))

    def expected(self, way: int, lag: float) -> float:
        """Where the edge of a way is to be, beyond what it takes usually, ns.

        Args:
            way: 1: our packets, late above the line; -1: the peer's, late below it.
            lag: as of `offset`; the length is that of now.
        """
        return way * self.offset(lag) + self.longer

    def shared(self, way: int, lag: float) -> tuple[float, float, float]:
        """Covariance of `expected` with each of the three."""
        aa, ab, ac, bb, bc, cc = self.spread
        return (
            way * (aa + lag * ab) + ac, way * (ab + lag * bb) + bc, way * (ac + lag * bc) + cc
        )  # fmt: skip

    def variance(self, way: int, lag: float) -> float:
        """Of `expected`, ns²."""
        a, b, c = self.shared(way, lag)
        return way * (a + lag * b) + c

    def told(self, way: int, edge_ns: float, variance: float, lag: float) -> State:
        """With a measurement of where the edge of a way is.

        Args:
            way: as of `expected`.
            edge_ns: what `expected` was to be.
            variance: of the measurement, ns².
            lag: as of `expected`, seconds.
        """
        a, b, c = self.shared(way, lag)
        by = 1.0 / (way * (a + lag * b) + c + variance)
        off = (edge_ns - self.expected(way, lag)) * by
        aa, ab, ac, bb, bc, cc = self.spread
        return State(
            self.at_ns, self.ns + a * off, self.rate + b * off, self.longer + c * off,
            Covariance(aa - a * a * by, ab - a * b * by, ac - a * c * by,
                       bb - b * b * by, bc - b * c * by, cc - c * c * by),
        )  # fmt: skip

    def freed(self, ns: float, clocks_ns: float = 0.0) -> State:
        """Known less: ways may be longer or shorter by so many ns, and clocks off by so many."""
        spread = self.spread
        return self._replace(
            spread=spread._replace(cc=spread.cc + ns**2, aa=spread.aa + clocks_ns**2)
        )
