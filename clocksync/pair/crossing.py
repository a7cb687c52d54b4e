"""A NIC's clock (PHC) over the host's raw clock, and paths between NICs' clocks. Pure.

The kernel reads a PHC between two readings of a clock of the system (``PTP_SYS_OFFSET_EXTENDED``,
drivers/ptp/ptp_chardev.c), so the PHC showed its time somewhere in that window: the middle is off
by half of it at most. Of some readings at once the shortest window is the best one, as phc2sys
takes it (linuxptp, sysoff.c), and of those over some seconds only such as are nearly as short count
(chrony, hwclock.c, averages those too). A straight line through them is the crossing. A PHC that
others slew or step (ptp4l, phc2sys) leaves that line: it begins anew, and its ``generation`` says
to whoever used it that what was made of stamps of before is void.

*Why paths are carried over, and PHCs are no nodes of the mesh.* A path's line is fitted to the
NICs' stamps as they are, to a nanosecond, and only then carried over to the raw clocks (`carried`).
With one PHC a host that is the mesh of PHCs with all its nodes renamed: the same equations. With
several, each rail's edge to its host is off by the crossing's own error, which the host's page
could not do without either; docs/design/clock.md has the figures.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from clocksync.pair.linear import Linear, split
from clocksync.pair.model import SECOND, Pair

PRECISE_NS = 52.0
"""A hardware cross stamp (PTM, ART) is good to a tick of the slowest ART, 19.2 MHz."""
FARTHEST_NS = 5 * SECOND
"""A crossing says nothing so long before or after it was made."""
MOST_SLOPE = 480e-6
"""Of a PHC over a raw clock; what a message can say."""
MEMORY_NS = 4 * SECOND


class Reading(NamedTuple):
    """A PHC and the raw clock, read together."""

    raw_ns: int
    phc_ns: int
    half_ns: float
    """How far off ``raw_ns`` may be as the moment at which the PHC showed ``phc_ns``."""


class Wall(NamedTuple):
    """The wall clock, read between two readings of the raw one."""

    before_ns: int
    wall_ns: int
    after_ns: int

    @property
    def apart_ns(self) -> int:
        """Wall less raw."""
        return self.wall_ns - (self.before_ns + self.after_ns) // 2


def tightest(triples: Iterable[tuple[int, int, int]]) -> Reading | None:
    """The reading of the shortest window.

    Args:
        triples: raw clock, PHC, raw clock; what runs backwards is left out.
    """
    best: Reading | None = None
    for before, phc, after in triples:
        width = after - before
        if width >= 0 and (best is None or width / 2 + 1 < best.half_ns):
            best = Reading(before + width // 2, phc, width / 2 + 1)
    return best


def through_wall(
    triples: Iterable[tuple[int, int, int]], first: Wall, last: Wall
) -> Reading | None:
    """The same of triples whose system times are the wall clock's.

    Args:
        triples: wall clock, PHC, wall clock.
        first: read before them.
        last: read after them.

    Returns:
        None also when the wall clock was stepped meanwhile.
    """
    best = tightest(triples)
    span = last.wall_ns - first.wall_ns
    unsure = max(first.after_ns - first.before_ns, last.after_ns - last.before_ns) / 2
    gained = last.apart_ns - first.apart_ns
    if best is None or span < 0 or unsure < 0 or abs(gained) > 2 * unsure + 500e-6 * span:
        return None
    # The wall clock is slewed by 500 ppm at most: between the two a straight line.
    share = min(max((best.raw_ns - first.wall_ns) / span, 0.0), 1.0) if span else 0.0
    raw = best.raw_ns - first.apart_ns - round(share * gained)
    return Reading(raw, best.phc_ns, best.half_ns + unsure)


class PhcLine(NamedTuple):
    """A PHC as a line over its host's raw clock."""

    line: Linear
    half_ns: float
    """How far off it may be all the time: the PHC need not show its time in the middle."""
    spread_ns: float
    """Standard error of the line at its origin, from the scatter of the readings."""
    slope_error: float
    generation: int
    """Another one: the PHC was stepped, or its rate was changed."""

    def phc(self, raw_ns: int) -> tuple[int, float]:
        """What it shows at a moment: whole nanoseconds and a part of one."""
        moved = self.line.moved(raw_ns)
        return moved.ns, moved.part

    def raw(self, phc_ns: int, part: float = 0.0) -> tuple[int, float]:
        """When it shows that: whole nanoseconds of the raw clock and a part of one."""
        line = self.line
        whole, rest = phc_ns - line.ns, part - line.part
        rest -= (whole + rest) * line.slope / (1 + line.slope)
        return split(rest, line.at_ns + whole)

    def error_ns(self, raw_ns: int) -> float:
        """Standard error at a moment."""
        return math.hypot(self.spread_ns, self.slope_error * (raw_ns - self.line.at_ns))


@dataclass(frozen=True, slots=True)
class CrossingRules:
    """Parameters of a crossing."""

    memory_ns: int = MEMORY_NS
    """In 4 s forty readings with a jitter of 20 ns give 3 ns and 3 ns/s; a crystal's random walk of
    1 ppb/√s bends the line by as much."""
    fewest: int = 10
    """Readings of a line."""
    newest: int = 5
    """They are held against the line of those before them."""
    near: float = 1.25
    near_ns: float = 20.0
    """So much longer than the shortest a window may be."""
    sigmas: float = 5.0
    slack_ns: float = 10.0
    """Newest readings that are all off to one side, by so much and so many standard errors, are of
    a PHC whose rate was changed, or that was stepped by less than the windows show."""
    wander: float = 5e-9
    """Most that a crystal's rate changes within a second."""
    widest_ns: float = 30_000.0
    """Half of a window; a longer one says nothing that a path does not say better."""
    oldest_ns: int = 2 * SECOND
    """Without a reading for so long there is no crossing."""


class Crossing:
    """Of one PHC. Feed it readings some ten times a second."""

    def __init__(self, rules: CrossingRules | None = None, generation: int = 0) -> None:
        """Args: ``generation``: of the first line; another in each life, for peers to see."""
        self.rules = rules or CrossingRules()
        self.generation = generation
        self.steps = 0
        """Times that the PHC was set."""
        self.adjusted = 0
        """Times that its rate was changed, or that it was set by less than a window shows."""
        self.wide = 0
        """Readings that took too long."""
        self.line: PhcLine | None = None
        self._readings: list[Reading] = []
        self._odd: list[Reading] = []
        self._count = 0
        self._fits: deque[tuple[PhcLine, float] | None] = deque(maxlen=self.rules.newest)
        """The last ones: the first is of what came before the newest readings."""

    def at(self, now_ns: int) -> PhcLine | None:
        """The crossing as of now (the raw clock); None: there is none, or no longer."""
        if self.line is None or now_ns - self._readings[-1].raw_ns > self.rules.oldest_ns:
            return None
        return self.line

    def lost(self) -> None:
        """The device went, and may come back as another."""
        if self._readings:
            self._anew([])

    def add(self, reading: Reading) -> None:
        """Take a reading; they are to come in order."""
        rules, known = self.rules, self._readings
        if reading.half_ns > rules.widest_ns:
            self.wide += 1
            return
        if known and reading.raw_ns <= known[-1].raw_ns:
            return
        if known and reading.raw_ns - known[-1].raw_ns > FARTHEST_NS:
            self._anew([])  # what happened meanwhile nobody knows
        elif known and self._beyond(reading):
            # One that lies is a driver's; the second of two alike is the PHC's.
            self._odd.append(reading)
            if len(self._odd) > 1:
                self.steps += 1
                self._anew(self._odd)
            return
        self._odd = []
        self._readings.append(reading)
        oldest = reading.raw_ns - rules.memory_ns
        self._readings = [one for one in self._readings if one.raw_ns >= oldest]
        self._count += 1
        odd = self._bent()
        if not odd and not self._count % rules.newest:
            odd = self._turned()
        if odd:
            self.adjusted += 1
            self._anew(odd)
        found = _fit(self._near(self._readings), self.generation, rules.fewest)
        self._fits.append(found)
        # A reading is off by half of its window at most: what scatters more is no line.
        straight = found is not None and found[1] < found[0].half_ns / 2
        self.line = found[0] if found and straight else None

    def _anew(self, readings: list[Reading]) -> None:
        self.generation += 1
        self._readings, self._odd, self.line = list(readings), [], None
        self._fits.clear()

    def _near(self, readings: list[Reading]) -> list[Reading]:
        most = min(one.half_ns for one in readings) * self.rules.near + self.rules.near_ns
        return [one for one in readings if one.half_ns <= most]

    def _beyond(self, reading: Reading) -> bool:
        """Whether no rate that a clock may have leads there from what is known."""
        last, rules = self._readings[-1], self.rules
        age = reading.raw_ns - last.raw_ns
        gained = (reading.phc_ns - last.phc_ns) - age
        if abs(gained) > MOST_SLOPE * age + reading.half_ns + last.half_ns:
            return True
        if self.line is None:
            return False
        line = self.line.line
        age = reading.raw_ns - line.at_ns
        off = line.ahead(reading.raw_ns, reading.phc_ns)
        error = rules.sigmas * self.line.error_ns(reading.raw_ns)
        error += rules.wander * age * age / SECOND / 2
        return abs(off) > reading.half_ns + self.line.half_ns + error

    def _bent(self) -> list[Reading]:
        """The newest readings, if they are of another rate than those before them."""
        rules, after = self.rules, self._readings[-self.rules.newest :]
        found = self._fits[0] if len(self._fits) == rules.newest else None
        if found is None:
            return []
        line, scatter = found
        if any(one.half_ns > line.half_ns * rules.near + rules.near_ns for one in after):
            return []  # busy just now: it will be seen when that is over
        offs = [line.line.ahead(one.raw_ns, one.phc_ns) for one in after]
        typical = sorted(offs)[len(offs) // 2]
        at = after[len(after) // 2].raw_ns
        age = at - line.line.at_ns
        most = rules.sigmas * math.hypot(line.error_ns(at), scatter / math.sqrt(len(offs)))
        most += rules.wander * age * age / SECOND / 2 + rules.slack_ns
        if abs(typical) <= most or min(offs) < 0 < max(offs):
            return []
        # The first of them may be of before.
        return [one for one, off in zip(after, offs, strict=True) if abs(off) > abs(typical) / 2]

    def _turned(self) -> list[Reading]:
        """The newer half of the readings, if its rate is another than that of the older one."""
        rules, known = self.rules, self._near(self._readings)
        older, newer = known[: len(known) // 2], known[len(known) // 2 :]
        one, other = _fit(older, 0, rules.fewest), _fit(newer, 0, rules.fewest)
        if one is None or other is None:
            return []
        was, now = one[0], other[0]
        most = rules.sigmas * math.hypot(was.slope_error, now.slope_error)
        most += rules.wander * (now.line.at_ns - was.line.at_ns) / SECOND
        return newer if abs(now.line.slope - was.line.slope) > most else []


def _fit(readings: list[Reading], generation: int, fewest: int) -> tuple[PhcLine, float] | None:
    """Least squares, and the scatter of a single reading."""
    n = len(readings)
    if n < fewest:
        return None
    raw, phc, _ = readings[-1]
    base = phc - raw
    at = [float(one[0] - raw) for one in readings]
    apart = [float(one[1] - one[0] - base) for one in readings]
    middle, mean = sum(at) / n, sum(apart) / n
    across = along = 0.0
    for x, y in zip(at, apart, strict=True):
        x -= middle
        across += x * x
        along += x * (y - mean)
    slope = along / across if across else math.inf
    if abs(slope) > MOST_SLOPE:
        return None
    start, left = mean - slope * middle, 0.0
    for x, y in zip(at, apart, strict=True):
        off = y - start - slope * x
        left += off * off
    left /= n - 2
    origin = raw + round(middle)
    ns, part = split(start + slope * (origin - raw), origin + base)
    half = sum(one[2] for one in readings) / n
    line = PhcLine(
        Linear(origin, ns, part, slope), half, math.sqrt(left / n), math.sqrt(left / across),
        generation,
    )  # fmt: skip
    return line, math.sqrt(left)


def carried(pair: Pair, own: PhcLine | None, theirs: PhcLine | None) -> Pair | None:
    """A path's line between the clocks that stamped as one between the two hosts' raw clocks.

    Args:
        pair: over the clock of our stamps.
        own: of the NIC that stamped at our end; None: the stamps were of the raw clock.
        theirs: the same of the peer's end.

    Returns:
        None when the peer's crossing is of another time.
    """
    if own is not None:
        # Where the crossing is best known: the line that results goes through it.
        at, (ns, part) = own.line.at_ns, own.phc(own.line.at_ns)
    elif theirs is not None:
        ns = theirs.line.ns - pair.base_ns
        at = ns = ns - round(pair.apart(ns) / (1 + pair.slope))
        part = 0.0
    else:
        return pair
    peer_ns, peer_part = split(part + pair.apart(ns) + pair.slope * part, ns + pair.base_ns)
    slope, half = 1 + pair.slope, 0.0
    spread, slope_error = pair.spread_ns, pair.slope_error
    made, seen = pair.at_ns, pair.seen_ns
    if own is not None:
        slope *= 1 + own.line.slope
        half += own.half_ns
        spread = math.hypot(spread, own.spread_ns)
        slope_error = math.hypot(slope_error, own.slope_error)
        made, seen = own.raw(made)[0], own.raw(seen)[0]
    if theirs is not None:
        peer_ns, peer_part = theirs.raw(peer_ns, peer_part)
        if abs(peer_ns - theirs.line.at_ns) > FARTHEST_NS:
            return None
        slope /= 1 + theirs.line.slope
        half += theirs.half_ns
        spread = math.hypot(spread, theirs.error_ns(peer_ns))
        slope_error = math.hypot(slope_error, theirs.slope_error)
    slope -= 1
    crossed = pair.sigmas * math.hypot(
        own.spread_ns if own else 0.0, theirs.error_ns(peer_ns) if theirs else 0.0
    )
    # The errors of rates count from where the path's line is best known.
    return pair._replace(
        at_ns=made, base_ns=peer_ns - at, apart_ns=peer_part + slope * (made - at), slope=slope,
        seen_ns=seen, asymmetry_ns=pair.asymmetry_ns + half, spread_ns=spread,
        slope_error=slope_error, limit_ns=pair.limit_ns + half + crossed,
    )  # fmt: skip
