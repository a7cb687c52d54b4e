"""What is usual for a stream: believed at first, learned, bounded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.baseline_rate import BaselineRate
from fabricd.detect.sequential import Cusum, Test

Test.__test__ = False
TEST = Test(3e-6, 5e-4, 20.0)
HOUR = 400 * 3600


def usual():
    return BaselineRate(3e-6, 1e-5)


def test_at_first_it_is_the_test_s_own_normal():
    assert usual().rate == 3e-6
    assert usual().nats(TEST, 3, 1000) == pytest.approx(TEST.nats(3, 1000))


def test_a_stream_is_judged_by_what_it_showed():
    known = usual()
    for _ in range(12):
        known.learn(7e-6 * HOUR, HOUR)
    assert known.rate == pytest.approx(7e-6, rel=0.1)
    assert known.nats(TEST, 1, 0) == pytest.approx(math.log(5e-4 / known.rate))
    assert known.nats(TEST, 0, 1000) == TEST.nats(0, 1000)


def test_old_times_are_forgotten():
    known = usual()
    for hours, rate in ((100, 1e-5), (100, 3e-6)):
        for _ in range(hours):
            known.learn(rate * HOUR, HOUR)
    assert known.rate < 3.5e-6


def test_a_burst_is_not_remembered_for_longer_than_it_takes_to_see_that_it_was_one():
    known = usual()
    known.learn(1000, 10_000)
    assert known.rate == pytest.approx(1e-5)
    for _ in range(2):
        known.learn(0, HOUR)
    assert known.rate < 5e-6


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e6))))
def test_nobody_gets_used_to_more_than_the_most(seen):
    known = usual()
    for events, exposure in seen:
        known.learn(events, exposure)
    assert 3e-6 <= known.rate <= 1e-5


def test_the_way_back_may_be_quicker_than_the_way_there():
    taken = {}
    for back in (1.0, 2.5):
        test = Test(3e-6, 5e-4, 20.0, ceiling=1.2, back=back)
        cusum, now = Cusum(), 0
        while not cusum.sick:
            now += 10**9
            cusum.step(test, test.nats(2, 400), 2, 400, now)
        began = now
        while cusum.sick:
            now += 10**9
            cusum.step(test, test.nats(0, 400), 0, 400, now)
        taken[back] = (now - began) / 1e9
    assert taken[1.0] / taken[2.5] == pytest.approx(2.5, rel=0.05)
    with pytest.raises(ValueError, match="back"):
        Test(1e-5, 1e-3, back=0.5)
