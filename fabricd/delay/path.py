"""One path: its base delay, and what is queued on it in each direction, without clock sync. Pure.

A stamp pair is delay plus the difference of two clocks that run apart: with the peer's clock θ
ahead of ours, ``f = t2 − t1 = delay out + θ`` and ``b = t4 − t3 = delay back − θ``. So

* f + b is free of θ: its minimum is the *base* (the round trip without queues), and what lies above
  is queued somewhere;
* (f − b) / 2 at packets that met no queue is θ plus half of the path's asymmetry: a line whose
  slope is the clocks' drift. It is carried on through times in which there is a queue, and then

      queued out  = f − line − base / 2          queued back = b + line − base / 2

tell on which way it stands. Their sum is known anyway, and neither is negative: that bounds the
line while it is carried on, so a wrong extrapolation can shift delay from one way to the other only
as far as there is a queue. A line that does not fit in there says that a clock was stepped; then
the direction is not known until the queue is gone.

(The lower envelope of one-way delays against clock skew is Paxson's, SIGMETRICS 1998, and Moon,
Skelly and Towsley's, INFOCOM 1999; that a pair's sum bounds the offset is RFC 5905's.)

**Base or queue.** A queue breathes, another route does not: a minimum that lies higher for ten
seconds, as steadily and with as little spread as before, without a loss, is a new base. A minimum
that fell for three seconds is one, too: nothing is faster than the wire.

With fabric time (`Reading`) the line is not carried on but known, and its distance from θ is the
asymmetry: base delays by direction, with the clock's bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from fabricd.delay.line import Line
from fabricd.probes.stamps import Exchange

STEPPED_NS = 10**9
"""A difference of clocks that jumped so far is a stepped clock, not a delay."""
DRIFTED_NS = 10**8
"""So far from where it began the difference is counted anew from where the line has it."""


class Reading(NamedTuple):
    """What fabric time knows of a path's two clocks at one moment. Nanoseconds."""

    offset_ns: int
    """The peer's stamping clock minus ours."""
    bound_ns: int
    """The true offset is within so much of it."""


@dataclass(frozen=True, slots=True)
class PathRules:
    """Parameters; times in nanoseconds, counts in steps of about a second."""

    clean_ns: int = 20_000
    """A step whose least round trip is so close to the base met no queue: kernel stamps of one
    packet are good to some 10 µs."""
    clean_most_ns: int = 200_000
    """On a noisy host three times its usual distance, but no more than this."""
    learn: int = 5
    """Clean steps until the line is used."""
    base_window: int = 60
    """Clean steps whose minimum is the base. Congested ones do not age it."""
    shifted: int = 10
    """Steps after which a steady higher minimum is another route: a queue that neither breathes nor
    drops for ten seconds does not exist beside TCP or DCQCN."""
    fell: int = 3
    """Steps after which a lower minimum is believed: one may be a clock being stepped."""
    steady_share: float = 0.1
    """Of the rise: how far the minima of the shifted steps may lie apart."""


class BaseChange(NamedTuple):
    """Another route. Nanoseconds; of the round trip."""

    before_ns: int
    after_ns: int
    tx_ns: int
    """How much of the difference is on the way out."""
    rx_ns: int


class Step(NamedTuple):
    """What one step of about a second found out."""

    tx: Sequence[int]
    """Queueing of each packet out, sorted; nanoseconds."""
    rx: Sequence[int]
    floor_ns: int
    """The least round trip above the base: what stood in both queues all the time."""
    sure: bool
    """Whether it is known which way the delay is on."""
    change: BaseChange | None = None


_NEVER = float("inf")


class _Halves(NamedTuple):
    """Of one step; nanoseconds but for ``now``, the clocks' difference at first taken off."""

    now: float
    """Our clock at the newest exchange, seconds since the epoch."""
    tx: list[float]
    """Delay out plus the clocks' difference as it is at ``now``, sorted."""
    rx: list[float]
    """Delay back less that."""
    sums: list[float]
    """Of exchanges with both: sorted."""
    lowest: tuple[float, float, float]
    """The least sum, and its two parts."""


@dataclass(slots=True)
class PathDelay:
    """Fed with a path's exchanges about once a second.

    Attributes:
        base_ns: least round trip, without the peer's hold time; None: not known yet.
        asymmetry_ns: base delay out minus half of the base, by fabric time; None: no fabric time.
        bound_ns: of that.
    """

    rules: PathRules = field(default_factory=PathRules)
    base_ns: float | None = None
    asymmetry_ns: float | None = None
    bound_ns: int = 0
    _line: Line = field(default_factory=Line)
    _epoch: int = 0
    """Our clock at x = 0."""
    _zero: int | None = None
    """t2 − t1 at first, and then where drift has taken it: taken off, so that what is left fits a
    float, and is small but for a step."""
    _kind: int = -1
    _other_kind: int = 0
    _sums: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    _noise: float = 0.0
    """Usual distance of a clean step's least round trip from the base."""
    _spread: float = 0.0
    """Usual distance of the median from the minimum."""
    _high: list[tuple[float, float, float]] = field(default_factory=list)
    """Steps in a row above the base: least round trip, spread, middle of the ways off the line."""
    _low: list[float] = field(default_factory=list)
    _high_lost: int = 0
    _odd: int = 0
    """Clean steps in a row that lie off the line."""

    @property
    def ready(self) -> bool:
        """Whether base and line are known."""
        return self.base_ns is not None and self._line.points >= self.rules.learn

    def step(
        self, exchanges: Sequence[Exchange], lost: int = 0, reading: Reading | None = None
    ) -> Step | None:
        """Take what came in about a second.

        Args:
            exchanges: in order.
            lost: packets lost meanwhile, both ways.
            reading: fabric time of this path's clocks at the newest exchange; None: there is none.

        Returns:
            None while base and line are being learned, and where nothing can be said.
        """
        if not exchanges:
            return None
        self._kinds(exchanges)
        halves = self._halves(exchanges)
        if halves is None:
            return None
        now, tx, rx, sums, (least, lowest_f, lowest_b) = halves
        spread = (sums[len(sums) // 2] + sums[(len(sums) - 1) // 2]) / 2 - least
        middle = (lowest_f - lowest_b) / 2
        if self.base_ns is None:
            self.base_ns = least
        tolerance = self._tolerance()
        above = least - self.base_ns
        change = None
        if above < -tolerance:
            change = self._fallen(least, middle, now)
            if change is None:
                return None
            above = least - self.base_ns
        else:
            self._low.clear()
        clean = above <= tolerance
        if clean:
            self._clean(now, least, middle, above, spread)
        else:
            self._high_lost += lost
            self._high.append((least, spread, middle - self._line.at(now)))
            moved = self._moved()
            if moved is not None:
                change, clean = moved, True
                above = least - self.base_ns
        if not self.ready:
            return None
        half = self.base_ns / 2
        line = self._line.at(now)
        if reading is not None and self._of_these(reading, middle if clean else line):
            line = self._by_fabric_time(reading, middle, line, clean=clean)
        else:
            self.asymmetry_ns = None
        # Neither queue is negative: that is where the line can be.
        most, fewest = tx[0] - half, half - rx[0]
        sure = clean or fewest - tolerance <= line <= most + tolerance
        if not clean:
            inside = min(max(line, fewest), most) if fewest <= most else (fewest + most) / 2
            if sure:
                self._hold(now, fewest, most, inside)
            line = inside
        none_tx, none_rx = half + line, half - line
        return Step(
            [int(f - none_tx) if f > none_tx else 0 for f in tx],
            [int(b - none_rx) if b > none_rx else 0 for b in rx],
            max(0, round(above)),
            sure,
            change,
        )

    # -- stamps -------------------------------------------------------------------------------

    def _kinds(self, exchanges: Sequence[Exchange]) -> None:
        """Kernel and NIC have different clocks: another kind of stamps begins anew."""
        kinds = {e[4] for e in exchanges}
        if self._kind < 0:
            self._kind = exchanges[-1].hardware
        if self._kind in kinds:
            self._other_kind = 0
            return
        self._other_kind += 1
        if self._other_kind >= self.rules.fell:
            self.restart()
            self._kind = exchanges[-1].hardware

    def restart(self) -> None:
        """Forget everything: other stamps, another peer."""
        fresh = PathDelay(self.rules)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def _halves(self, exchanges: Sequence[Exchange]) -> _Halves | None:
        """What was seen by direction, less the clocks' drift since then; None: nothing both ways.

        The hottest loop of the daemon: 900 exchanges a second where eight rails have ten peers.
        """
        kind, drift = self._kind, self._line.slope * 1e-9
        # Kinds may be mixed, of two clocks, and an exchange may have neither of its halves.
        ours = (max(e.sent, e.heard) for e in reversed(exchanges) if e.hardware == kind)
        latest = next((at for at in ours if at), 0)
        self._follow(latest)
        zero = self._zero
        tx: list[float] = []
        rx: list[float] = []
        sums: list[float] = []
        least, lowest = _NEVER, (0.0, 0.0)
        for sent, arrived, peer_sent, heard, hardware in exchanges:
            if hardware != kind:
                continue
            out = 0.0
            if sent:
                ahead = arrived - sent
                if zero is None or not -STEPPED_NS <= ahead - zero <= STEPPED_NS:
                    self._rezero(sent, arrived)
                    zero, drift = ahead, 0.0
                    tx, rx, sums, least = [], [], [], _NEVER
                out = ahead - zero - drift * (sent - latest)
                tx.append(out)
            if heard and zero is not None:
                behind = heard - peer_sent + zero
                if not -STEPPED_NS <= behind <= STEPPED_NS:
                    continue  # of before the step
                back = behind + drift * (heard - latest)
                rx.append(back)
                if sent:
                    both = out + back
                    sums.append(both)
                    if both < least:
                        least, lowest = both, (out, back)
        if not sums:
            return None
        tx.sort()
        rx.sort()
        sums.sort()
        return _Halves((latest - self._epoch) / 1e9, tx, rx, sums, (least, *lowest))

    def _follow(self, latest: int) -> None:
        """Drift is no step: 40 ppm are a second in 7 hours. Line and zero go the same way."""
        if self._zero is None or not latest or not self.ready:
            return
        drifted = self._line.at((latest - self._epoch) / 1e9)
        if abs(drifted) > DRIFTED_NS:
            self._zero += round(drifted)
            self._line.shift(-round(drifted))

    def _rezero(self, sent: int, arrived: int) -> None:
        """The first exchange, or a clock was stepped far: the base stays, the line does not."""
        self._epoch, self._zero = sent, arrived - sent
        self._line = Line()
        self._high.clear()
        self._high_lost = 0

    # -- base and line ------------------------------------------------------------------------

    def _tolerance(self) -> float:
        rules = self.rules
        return min(max(rules.clean_ns, 3 * self._noise), rules.clean_most_ns)

    def _clean(self, now: float, least: float, middle: float, above: float, spread: float) -> None:
        """A step that met no queue."""
        self._high.clear()
        self._high_lost = 0
        line = self._line
        if self.ready and abs(middle - line.at(now)) > self._tolerance():
            self._odd += 1
            if self._odd < self.rules.fell:
                return
            line.shift(middle - line.at(now))
            line.restart()  # A step, or the rate was changed by much.
        self._odd = 0
        line.add(now, middle)
        self._sums.append(least)
        self.base_ns = min(self._sums)
        self._noise += (max(0.0, above) - self._noise) / 16
        self._spread += (spread - self._spread) / 16

    def _hold(self, now: float, fewest: float, most: float, inside: float) -> None:
        """While one way is queued, the other one still says where the line is."""
        queue, near = most - fewest, max(self._tolerance(), 0.0)
        tx, rx = most - inside, inside - fewest
        if min(tx, rx) <= min(near, 0.2 * queue):
            seen = most if tx < rx else fewest
            if abs(seen - self._line.at(now)) <= near:
                self._line.add(now, seen, weight=0.5)

    def _fallen(self, least: float, middle: float, now: float) -> BaseChange | None:
        self._low.append(least)
        if len(self._low) < self.rules.fell:
            return None
        found = max(self._low)
        self._low.clear()
        return self._rebase(found, middle - self._line.at(now))

    def _moved(self) -> BaseChange | None:
        """Whether the minimum has moved up for good."""
        rules = self.rules
        if len(self._high) < rules.shifted:
            return None
        last = self._high[-rules.shifted :]
        del self._high[: -rules.shifted]
        if self._high_lost:
            # Counted over the whole time above: it starts anew with the next ten steps.
            self._high.clear()
            self._high_lost = 0
            return None
        sums = [row[0] for row in last]
        assert self.base_ns is not None
        rise = median(sums) - self.base_ns
        calm = max(self._tolerance(), 3 * self._spread)
        if max(sums) - min(sums) > max(self._tolerance(), rules.steady_share * rise):
            return None
        if median([row[1] for row in last]) > calm:
            return None
        return self._rebase(min(sums), median([row[2] for row in last]))

    def _rebase(self, found: float, moved: float) -> BaseChange | None:
        before = self.base_ns
        assert before is not None
        self.base_ns = found
        self._sums.clear()
        self._sums.append(found)
        self._high.clear()
        self._high_lost = 0
        if self._line.points < self.rules.learn:
            return None
        self._line.shift(moved)
        rise = found - before
        return BaseChange(
            round(before), round(found), round(rise / 2 + moved), round(rise / 2 - moved)
        )

    def _of_these(self, reading: Reading, seen: float) -> bool:
        """Whether it can be of the clocks that stamp here: no way takes less than nothing."""
        if self._zero is None or self.base_ns is None:
            return False
        off = abs(seen - (reading.offset_ns - self._zero))
        return off <= self.base_ns / 2 + self._tolerance() + reading.bound_ns

    def _by_fabric_time(
        self, reading: Reading, middle: float, line: float, *, clean: bool
    ) -> float:
        assert self._zero is not None
        theta = float(reading.offset_ns - self._zero)
        self.bound_ns = reading.bound_ns
        if clean or self.asymmetry_ns is None:
            seen = (middle if clean else line) - theta
            known = seen if self.asymmetry_ns is None else self.asymmetry_ns
            self.asymmetry_ns = known + (seen - known) / 8
        return theta + self.asymmetry_ns
