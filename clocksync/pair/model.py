"""What a path says of its two clocks, and the parameters of the estimator that makes it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

SECOND = 10**9
WALK = 1.5e-9
"""How far the rates of two crystals part in a second: 1 ppb/√s each."""
_WALKED = WALK**2 / (3 * SECOND)
"""Of the cube of an age in ns: the variance of the time that it makes, ns²."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of an estimator."""

    window_ns: int = 2 * SECOND
    """In 2 s a crystal's random walk of 1 ppb/√s takes it 1 to 2 ns off a line."""
    wide_ns: int = 8 * SECOND
    """In so much it is 4 to 5 ns, which is little where hardly a packet finds all queues empty."""
    loose_ns: float = 1.5
    """So the window grows to twice its length while the edges scatter by more than this, up to
    ``wide_ns``, and shrinks again at a quarter of it. At a load of 90 % of four ports in line this
    takes a pair's error from 45 / 1200 ns (p50 / p99) to some 17 / 90."""
    longest_ns: int = 16 * SECOND
    """Where points are few."""
    first_ns: int = SECOND // 2
    """A first line rests on so much: in less a step passes for a slope."""
    enough: int = 80
    """Points of a direction with which the window is long enough: ν of 2 % is two of them then."""
    nu: float = 0.1
    """Share of the points that make an edge, where every train is kept; the less are kept, the
    smaller it is: the more of what was kept stood in a queue that did not change."""
    least_nu: float = 0.01
    """Good up to a load of 90 % of each port on the way."""
    newest_ns: int = SECOND // 2
    """Older points were there when the last line was made; these are held against it."""
    odd_points: int = 3
    """Where none can be, before anything is made of it."""
    newest_points: int = 12
    """Of the other direction since the first that cannot be: fewer may all have met a queue."""
    step_ns: float = 200.0
    """A smaller step is averaged in; half of it is in the bound (`Pair.bound_ns`)."""
    step_spreads: float = 10.0
    """So many times the scatter of the last line are no step either."""
    clean_ns: float = 60.0
    """A window whose least round trip is longer than the path's by twice that is of packets that
    all stood in a queue, which may be one direction's. What was known before is better."""
    alike: float = 3.0
    """A least round trip that is longer by twice so many ``clean_ns`` is still the path's own if
    both edges are sharp and the line is where it was: both ways became longer alike."""
    turned: float = 20e-9
    """Nor does the rate change by more from one window to the next, beyond errors and wander."""
    torn: float = 20.0
    """Nor does the scatter of the edge by so many times."""
    vague: float = 0.01
    """A first line whose slope is not known better than this is none: with two clocks in a window
    the edge scatters by the step, and slopes of crystals differ by 1e-4."""
    sharp: float = 4.0
    """An edge that scatters by no more than so many times what is usual met no queue. A queue
    breathes: the edge of one scatters by a tenth of its height."""
    patience_ns: int = 60 * SECOND
    """For so long: then a path whose edges are sharp has become a longer one."""
    steady_ns: int = 8 * SECOND
    """A least round trip that has been the same for so long is the path's own, as far as anyone can
    tell who did not see it before: TCP both ways, and queues change it by multiples within that."""
    steady: float = 0.05
    """The same within so much of it."""
    sigmas: float = 4.0
    """Of the spread, in the bound."""
    warm: float = 2.0
    """So many times that, of lines of the first two windows: few points say how they scatter, and
    no line of before bears them out."""
    least_way_ns: float = 0.0
    """No packet takes less than this one way, by who knows the cables and switches. By what half of
    the least round trip is more than it, and by no more, the line may be off for unlike ways."""
    wander: float = 5e-9
    """Most that the slope changes within a second: five times a crystal's 1 ppb/√s."""


class Pair(NamedTuple):
    """What a path says of its two clocks."""

    at_ns: int
    """Our clock: where the line is best known."""
    base_ns: int
    apart_ns: float
    """The peer's clock minus ours at that moment, beyond ``base_ns``."""
    slope: float
    """How fast that grows, ns/ns."""
    half_rtt_ns: float
    """Half of what lies between the edges: of the least round trip, if the line is true."""
    asymmetry_ns: float
    """Half of the least round trip of packets that followed each other, less what every way takes
    (`Rules.least_way_ns`). If the two ways differ, or a clock was stepped within the window, the
    line may be off by so much."""
    spread_ns: float
    slope_error: float
    """Standard error of the slope."""
    window_ns: int
    seen_ns: int
    """Our clock: as of when it was made."""
    kept: tuple[float, float]
    """Share of the trains that were kept, of ours and of the peer's."""
    step_ns: float
    """Smallest step that would have been seen."""
    wander: float
    sigmas: float
    skew_ns: float = 0.0
    """By so much our packets' edge lies further from the line, and the peer's nearer."""
    queue_ns: float = 0.0
    """By so much queues may have put it off; in ``asymmetry_ns``."""
    bend: float = 0.0
    """How far they may have turned it, ns/ns."""
    limit_ns: float = math.inf
    """Of a line that is led on through queues: what the edges of ``seen_ns`` leave of its bound."""

    def apart(self, now_ns: int) -> float:
        """The peer's clock minus ours at ``now_ns`` (our clock), beyond ``base_ns``."""
        return self.apart_ns + self.slope * (now_ns - self.at_ns)

    def error_ns(self, now_ns: int) -> float:
        """How far off the line is at ``now_ns``, should both ways be alike."""
        age = abs(now_ns - self.at_ns)
        drift = self.sigmas * self.slope_error * age + self.wander * age * age / SECOND / 2
        return self.sigmas * self.spread_ns + self.queue_ns + self.step_ns / 2 + drift

    def drift(self, now_ns: int) -> float:
        """How fast `bound_ns` grows at ``now_ns``."""
        age = abs(now_ns - self.at_ns)
        return self.sigmas * self.slope_error + self.bend + self.wander * age / SECOND

    def bound_ns(self, now_ns: int) -> float:
        """How far off it is at ``now_ns``, whatever the two ways are like."""
        if self.limit_ns < math.inf:
            return self.limit_ns + self.drift(now_ns) * max(now_ns - self.seen_ns, 0)
        turned = self.bend * abs(now_ns - self.at_ns)
        return self.asymmetry_ns + self.error_ns(now_ns) + turned

    def likely_ns(self, now_ns: int) -> float:
        """Standard deviation of how far off it is at ``now_ns``, should both ways be alike.

        What a random walk of the rate makes of the time is its integral: σ √(T³/3).
        """
        return math.sqrt(self._variance(now_ns))

    def weight(self, now_ns: int) -> float:
        """One over the variance, for the mesh; no path is trusted to better than a nanosecond."""
        return 1.0 / (1.0 + self._variance(now_ns))

    def _variance(self, now_ns: int) -> float:
        age = float(abs(now_ns - self.at_ns))
        turned, spread, queue = self.slope_error * age, self.spread_ns, self.queue_ns
        walked = _WALKED * age * age * age
        return spread * spread + turned * turned + walked + queue * queue / 4


def off(one: Pair, other: Pair, now_ns: int) -> float:
    """How far two lines are apart, without sign."""
    return abs(one.apart(now_ns) - other.apart(now_ns) + (one.base_ns - other.base_ns))
