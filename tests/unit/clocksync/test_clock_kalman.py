"""The filter of two clocks and the ways between them, held against the textbook's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocksync.pair.kalman import Covariance, DelayVariation, State
from clocksync.pair.model import SECOND, WALK

BREATH = DelayVariation(18.0, 5.0)
BEGUN = State(7 * SECOND, 12.0, -3.0, 4.0, Covariance(30.0, 4.0, -2.0, 9.0, 1.0, 20.0))


def matrix(state):
    aa, ab, ac, bb, bc, cc = state.spread
    return np.array([[aa, ab, ac], [ab, bb, bc], [ac, bc, cc]])


def vector(state):
    return np.array([state.ns, state.rate, state.longer])


@pytest.mark.parametrize("seconds", [0.0, 0.3, 40.0])
def test_it_is_led_on_as_a_walk_of_the_rate_and_a_breath_of_the_ways(seconds):
    led = BEGUN.led(BEGUN.at_ns + round(seconds * SECOND), BREATH)
    left = np.exp(-seconds / BREATH.calm_s)
    step = np.array([[1, seconds, 0], [0, 1, 0], [0, 0, left]])
    walk = (WALK * SECOND) ** 2
    noise = np.array([
        [walk * seconds**3 / 3, walk * seconds**2 / 2, 0],
        [walk * seconds**2 / 2, walk * seconds, 0],
        [0, 0, BREATH.deviation_ns**2 * (1 - left**2)],
    ])  # fmt: skip
    assert vector(led) == pytest.approx(step @ vector(BEGUN))
    assert matrix(led) == pytest.approx(step @ matrix(BEGUN) @ step.T + noise)


@pytest.mark.parametrize("way", [1, -1])
def test_an_edge_is_a_measurement_of_the_sum(way):
    lag = -1.0
    row = np.array([way, way * lag, 1.0])
    told = BEGUN.told(way, 55.0, 72.0, lag)
    gain = matrix(BEGUN) @ row / (row @ matrix(BEGUN) @ row + 72.0)
    assert BEGUN.expected(way, lag) == pytest.approx(row @ vector(BEGUN))
    assert vector(told) == pytest.approx(vector(BEGUN) + gain * (55.0 - row @ vector(BEGUN)))
    assert matrix(told) == pytest.approx(matrix(BEGUN) - np.outer(gain, row @ matrix(BEGUN)))
    assert BEGUN.deviation(lag) ** 2 == pytest.approx(row[:2] @ matrix(BEGUN)[:2, :2] @ row[:2])


def test_both_edges_tell_clocks_and_ways_apart_and_one_does_not():
    vague = BEGUN._replace(spread=Covariance(1e4, 0.0, 0.0, 1.0, 0.0, 1e4))
    both = vague.told(1, 130.0, 1.0, 0.0).told(-1, -70.0, 1.0, 0.0)
    assert (both.ns, both.longer) == pytest.approx((100.0, 30.0), abs=0.1)
    assert both.deviation() < 1
    one = vague.told(1, 130.0, 1.0, 0.0)
    assert one.ns + one.longer == pytest.approx(130.0, abs=0.1)
    assert one.deviation() > 50


def test_a_way_that_may_be_another_leaves_the_clocks_as_they_were():
    led = BEGUN.freed(500.0).told(1, BEGUN.expected(1, 0.0) + 50.0, 72.0, 0.0)
    assert led.longer == pytest.approx(BEGUN.longer + 50.0, abs=1.0)
    assert led.ns == pytest.approx(BEGUN.ns, abs=0.5)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, -1]), st.floats(-2, 0), st.floats(0, 1000),
                  st.floats(-2, 15), st.floats(0, 60)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_however_far_off_the_clocks_may_be_what_is_left_is_a_spread(steps):
    """A peer that began anew is as far off as it pleases: 1.9e14 ns made a variance of -4e12."""
    state = BEGUN
    for way, lag, ways_ns, far, passed_s in steps:
        state = state.led(state.at_ns + round(passed_s * SECOND), BREATH).freed(ways_ns, 10**far)
        state = state.told(way, state.expected(way, lag) - 10**far, 900.0, lag)
        assert min(state.spread.aa, state.spread.bb, state.spread.cc) >= 0
        # Of the sum that was measured no more is left than the measurement may be off by.
        assert 0 <= state.variance(way, lag) <= 900.0 * (1 + 1e-3)
        assert np.linalg.eigvalsh(matrix(state)).min() >= -1e-9 * np.trace(matrix(state))
