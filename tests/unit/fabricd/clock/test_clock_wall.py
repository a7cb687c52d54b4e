"""From the wall clock to the raw one, ten readings a second: what is not sure is not converted."""

import random

from fabricd.clock.wall import KEPT, WIDE_NS, WallCrossing

SECOND = 10**9
STEP = SECOND // 10
WALL = 1_800_000_000 * SECOND


class Wall:
    """A wall clock over the raw one."""

    def __init__(self):
        self.rate, self.ahead, self.since = 13e-6, WALL, 10**12
        self.crossing, self.rng = WallCrossing(), random.Random(1)

    def at(self, raw):
        return raw + self.ahead + round(self.rate * (raw - self.since))

    def bend(self, raw, rate):
        self.ahead, self.since, self.rate = self.at(raw) - raw, raw, rate

    def read(self, raw, width=300):
        off = self.rng.randint(0, width)
        return self.crossing.add(raw, self.at(raw + off), raw + width)

    def run(self, begin, readings):
        for number in range(readings):
            assert self.read(begin + number * STEP)
        return begin + (readings - 1) * STEP


def test_a_stamp_between_two_readings_is_on_their_line():
    wall = Wall()
    now = wall.run(10**12, 20)
    for back in (1, STEP // 2, STEP, 5 * STEP):
        raw = now - back
        assert abs(wall.crossing.to_raw(wall.at(raw)) - raw) <= 300
    assert wall.crossing.steps == 0


def test_what_came_after_the_last_reading_or_long_before_is_not_known():
    wall = Wall()
    now = wall.run(10**12, 20)
    assert wall.crossing.to_raw(wall.at(now + 10**6)) is None
    assert wall.crossing.to_raw(wall.at(now - (KEPT + 1) * STEP)) is None
    assert WallCrossing().to_raw(WALL) is None


def test_a_first_reading_tells_no_rate():
    wall = Wall()
    wall.run(10**12, 2)
    assert wall.crossing.to_raw(wall.at(10**12 + STEP // 2)) is None


def test_a_step_is_seen_and_no_stamp_of_both_times_is_converted():
    for step in (50_000, -50_000, SECOND, -STEP // 2, -3600 * SECOND):
        wall = Wall()
        now = wall.run(10**12, 20)
        before = wall.at(now + STEP // 3)
        wall.ahead += step
        after = wall.at(now + STEP // 2)
        assert wall.read(now + STEP)
        assert wall.crossing.steps == 1
        for readings in range(2):
            # A packet stamped before the step may be read after it.
            assert wall.crossing.to_raw(before) is None
            assert wall.crossing.to_raw(after) is None
            assert wall.read(now + (2 + readings) * STEP)
        wall.run(now + 4 * STEP, 4)
        raw = now + 6 * STEP
        assert abs(wall.crossing.to_raw(wall.at(raw)) - raw) <= 300


def test_a_rate_that_changes_at_once_is_no_line():
    wall = Wall()
    now = wall.run(10**12, 20)
    wall.bend(now + STEP // 2, 500e-6)
    wall.read(now + STEP)
    assert wall.crossing.to_raw(wall.at(now + STEP // 2)) is None


def test_a_slew_that_goes_on_is_followed():
    wall = Wall()
    now = wall.run(10**12, 20)
    wall.bend(now, 20e-6)
    wall.run(now + STEP, 10)
    raw = now + 9 * STEP + STEP // 3
    assert abs(wall.crossing.to_raw(wall.at(raw)) - raw) <= 300


def test_readings_close_to_each_other_tell_no_rate_and_are_no_step():
    wall = Wall()
    now = 10**12
    for gap in (STEP, 10**5, STEP, 10**6, 3 * STEP, 10**4, STEP, STEP):
        now += gap
        assert wall.read(now)
    assert wall.crossing.steps == 0


def test_a_reading_that_was_interrupted_does_not_count():
    wall = Wall()
    now = wall.run(10**12, 20)
    assert not wall.read(now + STEP, WIDE_NS + 1)
    assert not wall.read(now, 300), "nor one of no later moment"
    assert wall.crossing.to_raw(wall.at(now + STEP // 2)) is None


def test_where_every_reading_takes_long_they_count_all_the_same():
    wall = Wall()
    now = 10**12
    for number in range(20):
        assert wall.read(now + number * STEP, 9_000)
    raw = now + 18 * STEP + STEP // 2
    assert abs(wall.crossing.to_raw(wall.at(raw)) - raw) <= 9_000
    assert not wall.read(now + 20 * STEP, 18_001), "twice as long as the shortest"
    assert wall.crossing.steps == 0


def test_after_a_long_stop_nothing_of_it_is_converted():
    wall = Wall()
    now = wall.run(10**12, 20)
    later = now + 30 * SECOND
    wall.bend(now + SECOND, 30e-6)
    assert wall.read(later)
    assert wall.crossing.to_raw(wall.at(now + 10 * SECOND)) is None
    wall.run(later + STEP, 4)
    raw = later + 2 * STEP + 1000
    assert abs(wall.crossing.to_raw(wall.at(raw)) - raw) <= 300
