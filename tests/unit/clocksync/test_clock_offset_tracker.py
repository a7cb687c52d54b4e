"""The line of a path, led on from look to look: what windows do to it, and crystals do not."""

import numpy as np
import pytest
from test_clock_pair import JITTER_NS, SLOPE, Path

from clocksync.pair.model import SECOND, off
from clocksync.pair.offset_tracker import OffsetTracker

pytestmark = pytest.mark.virtual_time

QUIET_S = 12


def learnt(seed=0, **more):
    """A path that has been watched for a while, by crystals."""
    path = Path(seed, **more)
    path.walk(120)
    list(path.run(QUIET_S, step=0.3))
    return path


def errors(path, seconds):
    found = []
    for pair, error in path.run(seconds, step=0.3):
        assert pair is not None
        assert abs(error) <= pair.bound_ns(path.now)
        found.append(abs(error))
    return found


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_a_queue_that_begins_on_one_way_does_not_turn_the_line(seed, way):
    """Its edge is at one end of the window then; a line through that was up to 0.3 us off."""
    path = learnt(seed)
    path.standing = (7_000.0, 0.0) if way == 0 else (0.0, 7_000.0)
    assert max(errors(path, 12)) < 60
    path.standing = (0.0, 0.0)
    assert max(errors(path, 4)) < 60


@pytest.mark.parametrize("seed", range(4))
def test_a_way_that_is_shorter_now_and_then_is_no_clock(seed):
    """One core instead of two: a fifth of the packets took 70 ns less for some seconds."""
    path = learnt(seed)
    path.warm = (0.2, 0.0)
    assert max(errors(path, 3)) < 60
    path.warm = (0.0, 0.0)
    assert max(errors(path, 3)) < 60


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_the_one_way_without_a_queue_may_become_shorter_for_a_while(seed, way):
    """A machine that ran faster for 4 s made all ways 50 ns shorter; the rate that this was taken
    for led the clocks on by 15 ns/s, and the way as it had been passed for a queue."""
    path = learnt(seed)
    path.standing = (7_000.0, 0.0) if way == 0 else (0.0, 7_000.0)
    list(path.run(6, step=0.3))
    path.shorter = (50.0, 50.0)
    worst = errors(path, 4.2)
    path.shorter = (0.0, 0.0)
    worst += errors(path, 20)
    assert max(worst) < 70
    assert np.median(worst[-20:]) < 40


def test_ways_that_are_longer_together_do_not_move_the_clocks():
    """By 60 ns, whichever way is in a queue meanwhile."""
    path = learnt(7)
    path.shorter = (-60.0, -60.0)
    worst = errors(path, 3)
    path.standing = (0.0, 7_000.0)
    worst += errors(path, 6)
    path.shorter = (0.0, 0.0)
    worst += errors(path, 6)
    assert max(worst) < 60


def test_both_ways_flooded_leave_it_to_the_crystals_as_they_went():
    """0.8 T^1.5 ns after T seconds, and what the rate was known to."""
    after = []
    for seed in range(6):
        path = learnt(seed)
        path.standing = (6_000.0, 9_000.0)
        after.append(errors(path, 10)[-1])
    assert np.median(after) < 60
    assert max(after) < 200


def test_a_flood_both_ways_with_gaps_is_followed_through_them():
    """Now and then one way is empty for half a second; that is enough."""
    path = learnt(3)
    worst = []
    for _ in range(8):
        path.standing = (6_000.0, 9_000.0)
        list(path.run(2.1, step=0.3))
        path.standing = (6_000.0, 0.0)
        worst += errors(path, 0.9)
    assert np.percentile(worst, 90) < 50


def test_a_clock_that_is_slewed_is_followed_by_its_windows():
    path = learnt(1)
    path.slewed = 1e-6
    list(path.run(4, step=0.3))
    assert max(errors(path, 3)) < 60


def test_coarse_stamps_are_followed_as_well_as_windows_do():
    """Of a virtual machine: they scatter by microseconds."""
    path = learnt(2, jitter=30 * JITTER_NS)
    led, windows = [], []
    for pair, error in path.run(20, step=0.3):
        assert abs(error) <= pair.bound_ns(path.now)
        led.append(abs(error))
        line = path.estimator._line
        windows.append(abs(path.error(line)))
    assert np.median(led) < 1.5 * np.median(windows) + 10


def test_its_bound_is_the_windows_and_how_far_it_is_off():
    path = learnt(5)
    path.standing = (7_000.0, 0.0)
    for pair, _ in path.run(6, step=0.3):
        line = path.estimator._line
        for later in (0, SECOND, 20 * SECOND):
            now = path.now + later
            assert pair.bound_ns(now) >= line.bound_ns(now) + off(pair, line, now) - 1e-3


def test_nothing_is_led_on_that_did_not_begin_with_a_sure_line():
    path = Path(0)
    list(path.run(8))
    follower, line = OffsetTracker(), path.estimator._line
    for later in range(20):
        now = path.now + later * SECOND // 10
        assert follower.follow(line, False, path.estimator.ways, now) is line
    assert line.slope == pytest.approx(SLOPE, abs=60e-9)


def test_of_a_clock_that_was_set_back_nothing_is_led_on():
    path = learnt(6)
    follower, line = path.estimator._follower, path.estimator._line
    assert follower.follow(line, True, path.estimator.ways, path.now) is not line
    earlier = path.now - SECOND // 20
    assert follower.follow(line, True, path.estimator.ways, earlier) is line
    assert follower.follow(line, False, path.estimator.ways, earlier + SECOND // 10) is line
