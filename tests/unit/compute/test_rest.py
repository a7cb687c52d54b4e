"""Work takes its share of a core on the long run, and none of a recovery waits. Pure."""

import pytest

from compute.rest import BURST_S, SHARE, Rest


@pytest.mark.parametrize("spent", [0.001, 0.1, 3.0])
def test_in_the_long_run_it_is_the_share(spent):
    rest, now, worked = Rest(), 1000.0, 0.0
    for _ in range(20_000):
        now += spent
        worked += spent
        now += rest.after(spent, now)
        if now > 1000.0 + 3600.0:
            break
    assert worked <= SHARE * (now - 1000.0) + BURST_S + spent


def test_a_burst_is_not_delayed_and_comes_back_after_a_while():
    rest, now = Rest(), 0.0
    for _ in range(2):
        rests = []
        for _ in range(12):
            now += 0.1
            rests.append(rest.after(0.1, now))
            now += rests[-1]
        assert rests[:8] == [0.0] * 8
        assert rests[-1] > 0.0
        now += BURST_S / SHARE


def test_a_clock_that_stands_still_or_goes_back_earns_nothing():
    rest = Rest()
    assert rest.after(BURST_S, 5.0) == 0.0
    assert rest.after(0.15, 4.0) == pytest.approx(1.0)
