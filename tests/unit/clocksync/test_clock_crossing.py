"""A PHC over the raw clock, from readings whose truth is known; and paths carried over by it."""

import math
import random

import pytest

from clocksync.pair.crossing import Crossing, Reading, Wall, carried, through_wall, tightest
from clocksync.pair.model import SECOND, Pair

RAW = 10**15
PHC = 1_800_000_000 * SECOND


class Nic:
    """A PHC with a crystal of its own, read over PCIe; others may set it."""

    def __init__(self, seed, *, rate=12e-6, wander=1e-9, shortest_ns=600.0, jitter_ns=80.0,
                 middle=0.5):  # fmt: skip
        self.rng = random.Random(seed)
        self.raw, self.rate, self.wander = RAW, rate, wander
        self.gained = 0.0
        self.shortest, self.jitter, self.middle = shortest_ns, jitter_ns, middle
        self.crossing = Crossing()
        self.errors = []
        self.none = 0

    def run(self, seconds):
        """Ten readings a second; how far the line then is from the truth, each time."""
        self.errors, self.none = [], 0
        for _ in range(round(10 * seconds)):
            self.raw += SECOND // 10
            self.rate += self.rng.gauss(0, self.wander * math.sqrt(0.1))
            self.gained += self.rate * SECOND / 10
            windows = [self.shortest + self.rng.expovariate(1 / self.jitter) for _ in range(3)]
            triples = []
            for number, width in enumerate(windows):
                began = self.raw + 5000 * number
                at = began + self.middle * width + self.rng.gauss(0, 15)
                at = min(max(at, began), began + width)
                triples.append((began, round(self.phc(at)), began + round(width)))
            self.crossing.add(tightest(triples))
            line = self.crossing.at(self.raw)
            if line is None:
                self.none += 1
            else:
                ns, part = line.phc(self.raw)
                self.errors.append(ns - PHC - (self.raw - RAW) + part - self.gained)

    def phc(self, raw):
        """What it shows, without the whole seconds that a float cannot hold."""
        return PHC + round(raw) - RAW + round(self.gained + self.rate * (raw - self.raw))

    def worst(self):
        """Largest error of the line."""
        return max(abs(error) for error in self.errors)


def test_the_shortest_window_counts():
    found = tightest([(100, 7, 900), (1000, 8, 1400), (2000, 9, 1990), (3000, 10, 3401)])
    assert found == Reading(1200, 8, 201.0)
    assert tightest([]) is None
    assert tightest([(5, 1, 4)]) is None


def test_over_the_wall_clock_the_slew_falls_out_and_a_step_is_no_reading():
    first = Wall(RAW, 5_000_000_000, RAW + 40)
    apart = first.apart_ns
    gained = 25  # 500 ppm of 50 us
    last = Wall(RAW + 50_000, RAW + 50_020 + apart + gained, RAW + 50_040)
    middle = RAW + 25_020 + apart + gained // 2
    found = through_wall([(middle - 300, 77, middle + 300)], first, last)
    assert found.phc_ns == 77
    assert found.raw_ns == pytest.approx(RAW + 25_020, abs=2)
    assert found.half_ns == 300 + 1 + 20
    assert through_wall([], first, last) is None
    stepped = last._replace(wall_ns=last.wall_ns + 1000)
    assert through_wall([(middle - 300, 77, middle + 300)], first, stepped) is None
    assert through_wall([(middle, 77, middle)], last, first) is None, "backwards"


@pytest.mark.parametrize("seed", range(2))
def test_the_jitter_of_reads_is_averaged_to_some_nanoseconds(seed):
    nic = Nic(seed)
    nic.run(3)
    nic.run(30)
    assert nic.none == 0
    assert math.sqrt(sum(e * e for e in nic.errors) / len(nic.errors)) < 6
    line = nic.crossing.line
    assert nic.worst() < line.half_ns
    assert line.half_ns < 400
    assert 0.1 < line.spread_ns < 5
    assert line.line.slope == pytest.approx(nic.rate, abs=2e-8)
    assert (nic.crossing.generation, nic.crossing.steps, nic.crossing.adjusted) == (0, 0, 0)


def test_a_phc_that_is_read_late_in_its_window_is_off_by_less_than_the_line_says():
    nic = Nic(5, middle=0.95)
    nic.run(30)
    offs = [abs(error) for error in nic.errors[20:]]
    assert 200 < sum(offs) / len(offs) < nic.crossing.line.half_ns
    assert max(offs) < nic.crossing.line.half_ns + 6 * nic.crossing.line.spread_ns


def test_slow_reads_between_quick_ones_do_not_count():
    nic = Nic(6)
    nic.run(10)
    for slow in (True, False, True, True, False, True):
        nic.shortest = 20_000 if slow else 600
        nic.middle = 0.9 if slow else 0.5
        nic.run(0.4)
        assert nic.worst() < 60
    assert nic.crossing.generation == 0


def test_reads_that_take_too_long_are_counted_and_give_no_line():
    nic = Nic(7, shortest_ns=70_000)
    nic.run(3)
    assert nic.crossing.line is None
    assert nic.crossing.wide == 30


@pytest.mark.parametrize("step", [-1_000, 1_000, 37 * SECOND, -PHC // 2])
def test_a_step_is_seen_at_the_second_reading_and_the_line_begins_anew(step):
    nic = Nic(8)
    nic.run(20)
    nic.gained += step
    nic.run(0.2)
    assert nic.crossing.line is None, "nothing is said of a time that is two"
    assert (nic.crossing.steps, nic.crossing.generation) == (1, 1)
    nic.run(1)
    nic.run(10)
    assert nic.none == 0
    assert nic.worst() < 60
    assert nic.crossing.steps == 1


@pytest.mark.parametrize("step", [-200, 150])
def test_a_step_within_the_window_is_seen_within_a_second(step):
    nic = Nic(9)
    nic.run(20)
    nic.gained += step
    nic.run(1)
    assert nic.crossing.adjusted == 1
    nic.run(3)
    nic.run(5)
    assert nic.worst() < 60


@pytest.mark.parametrize(("rate", "within"), [(1e-5, 0.4), (1e-6, 1.0), (1e-7, 4.0)])
def test_a_rate_that_is_changed_is_seen_before_it_does_harm(rate, within):
    nic = Nic(10)
    nic.run(20)
    nic.rate += rate
    nic.run(within)
    assert nic.crossing.generation == 1
    assert nic.worst() < (2000 if rate > 1e-6 else 400 if rate > 1e-7 else 80)
    nic.run(3)
    nic.run(10)
    assert nic.worst() < 40
    assert nic.none == 0
    assert nic.crossing.generation == 1


def test_a_phc_that_a_servo_hunts_for_has_no_line_that_is_wrong():
    nic = Nic(11)
    nic.run(10)
    none = 0
    for number in range(40):
        nic.rate += 5e-6 if number % 2 else -5e-6
        nic.run(0.5)
        line = nic.crossing.at(nic.raw)
        none += line is None
        if line is not None:
            assert abs(nic.errors[-1]) < line.half_ns + 4 * line.error_ns(nic.raw)
    assert none > 30


def test_one_reading_that_lies_is_left_out():
    nic = Nic(12)
    nic.run(10)
    nic.crossing.add(Reading(nic.raw + 1000, nic.phc(nic.raw) + 50_000, 300.0))
    nic.run(5)
    assert nic.crossing.generation == 0
    assert nic.worst() < 60


def test_without_readings_there_is_no_crossing_and_after_a_gap_another_one():
    nic = Nic(13)
    nic.run(5)
    assert nic.crossing.at(nic.raw + 3 * SECOND) is None
    nic.raw += 10 * SECOND
    nic.gained += nic.rate * 10 * SECOND
    nic.run(0.5)
    assert nic.crossing.generation == 1
    assert nic.crossing.line is None
    nic.run(1)
    assert nic.crossing.line is not None
    nic.crossing.lost()
    assert (nic.crossing.line, nic.crossing.generation) == (None, 2)


def test_time_goes_over_and_back():
    nic = Nic(14, rate=-40e-6)
    nic.run(10)
    line = nic.crossing.line
    for raw in (nic.raw, nic.raw - 3 * SECOND, nic.raw + 4 * SECOND):
        ns, part = line.phc(raw)
        back, rest = line.raw(ns, part)
        assert back + rest - raw == pytest.approx(0, abs=1e-3)


def path(at_ns, there_ns, slope):
    """A path's line between the clocks that stamp."""
    return Pair(
        at_ns=at_ns, base_ns=there_ns - at_ns, apart_ns=0.25, slope=slope, half_rtt_ns=700.0,
        asymmetry_ns=700.0, spread_ns=2.0, slope_error=1e-9, window_ns=2 * SECOND, seen_ns=at_ns,
        kept=(1.0, 1.0), step_ns=200.0, wander=5e-9, sigmas=4.0,
    )  # fmt: skip


@pytest.mark.parametrize("hardware", [(True, True), (True, False), (False, True), (False, False)])
def test_a_path_between_any_two_clocks_is_one_between_raw_clocks(hardware):
    """Two hosts: at one moment each raw clock and each PHC show what is known."""
    peer_rate = 25e-6  # of the peer's raw clock over ours
    ends, stamps, rates = [], [], []
    for seed, kind, raw_rate in ((20, hardware[0], 0.0), (21, hardware[1], peer_rate)):
        nic = Nic(seed, rate=7e-6 * (1 + seed - 20), jitter_ns=20.0)
        nic.run(10)
        ends.append(nic.crossing.line if kind else None)
        # The truth, not the line: both end at the same true moment, which is raw RAW + 10 s.
        stamps.append(nic.phc(nic.raw) if kind else nic.raw)
        rates.append((1 + raw_rate) * (1 + (nic.rate if kind else 0.0)))
    pair = path(stamps[0], stamps[1], rates[1] / rates[0] - 1)
    found = carried(pair, *ends)
    raw = RAW + 10 * SECOND
    for later in (0, 3 * SECOND):
        truth = peer_rate * later
        error = found.base_ns + found.apart(raw + later) - truth
        assert abs(error) < 20 + (0 if not any(hardware) else 1e-8 * later)
        assert abs(error) < found.bound_ns(raw + later)
    assert found.slope == pytest.approx(peer_rate, abs=2e-8)
    halves = sum(end.half_ns for end in ends if end)
    assert found.asymmetry_ns == pytest.approx(700 + halves)
    assert found.spread_ns >= 2.0
    assert found.seen_ns == pytest.approx(raw, abs=50)
    assert found.half_rtt_ns == 700.0


def test_a_crossing_of_another_time_carries_nothing():
    nic = Nic(30)
    nic.run(10)
    line = nic.crossing.line
    late = line._replace(line=line.line.moved(nic.raw + 20 * SECOND))
    assert carried(path(nic.raw, nic.phc(nic.raw), 0.0), None, late) is not None, (
        "its own moment is where the two meet"
    )
    assert carried(path(nic.phc(nic.raw), nic.phc(nic.raw), 0.0), line, late) is None
