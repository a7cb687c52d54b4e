"""Virtual clocks of a lab: alike for all who ask, and as bad as is said."""

import numpy as np

from lab.clocks.virtual_clock import GRID_NS, RATE, Step, VirtualClock, VirtualClocks

ORIGIN = 5 * 10**12


def test_everybody_has_the_same_clock_of_a_host():
    stamps = ORIGIN + np.arange(0, 10**10, 10**8)
    one, other = VirtualClocks(1, 7, ORIGIN), VirtualClocks(1, 8, ORIGIN)
    assert (one.own(stamps) == other.peers(7, stamps)).all()
    assert (one.own(stamps) != one.peers(8, stamps)).all()


def test_rates_are_off_constantly_and_wander():
    stamps = ORIGIN + np.arange(0, 60 * 10**9, 10**9)
    rates = [np.diff(VirtualClock(1, host, ORIGIN).of(stamps)) / 1e9 - 1 for host in range(20)]
    assert max(abs(rate[0]) for rate in rates) < RATE + 1e-9
    assert np.std([rate[0] for rate in rates]) > RATE / 4
    walked = [rate[-1] - rate[0] for rate in rates]
    assert 3e-9 < np.std(walked) < 20e-9, "1 ppb/√s for a minute"


def test_it_is_a_line_between_the_points_of_its_grid():
    clock = VirtualClock(1, 7, ORIGIN)
    shown = [clock.at(ORIGIN + at) for at in (0, GRID_NS // 2, GRID_NS)]
    assert abs(shown[0] + shown[2] - 2 * shown[1]) <= 2


def test_steps_are_of_one_host_from_their_moment_on():
    steps = [Step(7, ORIGIN + 2 * 10**9, 400_000), Step(7, ORIGIN + 10**9, -1000)]
    stamps = ORIGIN + np.array([10**9 - 1, 10**9, 2 * 10**9, 3 * 10**9])
    moved = VirtualClock(1, 7, ORIGIN, steps).of(stamps) - VirtualClock(1, 7, ORIGIN).of(stamps)
    assert moved.tolist() == [0, -1000, 399_000, 399_000]
    other = VirtualClocks(1, 8, ORIGIN, steps)
    assert (other.own(stamps) == VirtualClocks(1, 8, ORIGIN).own(stamps)).all()
    assert (other.peers(7, stamps) == VirtualClock(1, 7, ORIGIN, steps).of(stamps)).all()
    assert [Step.parse(str(step)) for step in steps] == steps
