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

from clocksync.pair.model import SECOND, WALK


class Covariance(NamedTuple):
    """Of offset (a, ns), rate (b, ns/s) and length (c, ns)."""

    aa: float
    ab: float
    ac: float
    bb: float
    bc: float
    cc: float


class DelayVariation(NamedTuple):
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

    def led(self, now_ns: int, breath: DelayVariation) -> State:
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
        return State(
            self.at_ns, self.ns + a * off, self.rate + b * off, self.longer + c * off,
            _less(self.spread, (a * by, b * by, c * by), (way, way * lag), variance),
        )  # fmt: skip

    def freed(self, ns: float, clocks_ns: float = 0.0) -> State:
        """Known less: ways may be longer or shorter by so many ns, and clocks off by so many."""
        spread = self.spread
        return self._replace(
            spread=spread._replace(cc=spread.cc + ns**2, aa=spread.aa + clocks_ns**2)
        )


def _less(
    spread: Covariance, gain: tuple[float, float, float], row: tuple[float, float], variance: float
) -> Covariance:
    """What a measurement leaves of it, in Joseph's form: (1 - g r) P (1 - g r)' + v g g'.

    P less what was learnt is the same on paper, and a difference of two almost like numbers where
    the clocks may be hours off: a peer that began anew made 4e28 ns² into less than nothing.
    (Bucy and Joseph, "Filtering for Stochastic Processes with Applications to Guidance", 1968.)

    Args:
        spread: before.
        gain: of offset (ns), rate (ns/s) and length (ns) for a nanosecond of what was measured.
        row: how much of offset and of rate (s) is in what was measured; of the length all is.
        variance: of the measurement, ns².
    """
    aa, ab, ac, bb, bc, cc = spread
    p, q, r = gain
    x, y = row
    # 1 - g r, by rows; and that times P.
    a1, a2, a3 = 1 - p * x, -p * y, -p
    b1, b2, b3 = -q * x, 1 - q * y, -q
    c1, c2, c3 = -r * x, -r * y, 1 - r
    u1, u2, u3 = (
        a1 * aa + a2 * ab + a3 * ac,
        a1 * ab + a2 * bb + a3 * bc,
        a1 * ac + a2 * bc + a3 * cc,
    )
    v1, v2, v3 = (
        b1 * aa + b2 * ab + b3 * ac,
        b1 * ab + b2 * bb + b3 * bc,
        b1 * ac + b2 * bc + b3 * cc,
    )
    w1, w2, w3 = (
        c1 * aa + c2 * ab + c3 * ac,
        c1 * ab + c2 * bb + c3 * bc,
        c1 * ac + c2 * bc + c3 * cc,
    )
    return Covariance(
        u1 * a1 + u2 * a2 + u3 * a3 + variance * p * p,
        u1 * b1 + u2 * b2 + u3 * b3 + variance * p * q,
        u1 * c1 + u2 * c2 + u3 * c3 + variance * p * r,
        v1 * b1 + v2 * b2 + v3 * b3 + variance * q * q,
        v1 * c1 + v2 * c2 + v3 * c3 + variance * q * r,
        w1 * c1 + w2 * c2 + w3 * c3 + variance * r * r,
    )  # fmt: skip
