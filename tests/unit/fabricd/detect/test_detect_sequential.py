"""The sequential test: quick on what is sick, silent on what is not, unmoved by a burst."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.loss_rules import LossRules
from fabricd.detect.sequential import Cusum, Test

Test.__test__ = False

SEC = 10**9
STEP = SEC // 2
LOSS = Test(1e-5, 1e-3)
PER_STEP = 200  # 400 packets a second, read twice a second


def run(rate, seconds, seed, test=LOSS):
    """Seconds until the verdict; None: none."""
    rng = np.random.default_rng(seed)
    cusum = Cusum()
    for step in range(2 * seconds):
        lost = int(rng.binomial(PER_STEP, rate))
        nats = test.nats(lost, PER_STEP)
        if cusum.step(test, nats, lost, PER_STEP, step * SEC // 2):
            return step / 2
    return None


@pytest.mark.parametrize(("rate", "within"), [(1e-3, 30), (1e-2, 3), (0.2, 2)])
def test_sick_streams_are_found_in_time(rate, within):
    found = [run(rate, 60, seed) for seed in range(300)]
    late = sum(t is None or t > within for t in found)
    assert late <= 0.05 * len(found)


def test_normal_streams_raise_nothing():
    assert [run(1e-6, 1800, seed) for seed in range(40)] == [None] * 40
    assert sum(run(1e-5, 1800, seed) is not None for seed in range(40)) == 0


def test_a_burst_alone_is_no_verdict_and_one_that_comes_again_is():
    cusum = Cusum()
    for number in range(3):
        sick = cusum.step(LOSS, LOSS.nats(200, 200), 200, 200, number * STEP)
        assert sick is (number == 2)
    assert cusum.value <= LOSS.ceiling * LOSS.threshold


@pytest.mark.parametrize("readings", [1, 2, 10, 100])
def test_reading_more_often_makes_no_verdict_of_a_short_burst(readings):
    """Three quarters of a second in which everything is lost, read so often."""
    cusum = Cusum()
    cusum.step(LOSS, LOSS.nats(0, 200), 0, 200, STEP)
    for number in range(1, readings + 1):
        now = STEP + number * 3 * STEP // 2 // readings
        assert not cusum.step(LOSS, LOSS.nats(300 / readings, 300 / readings), 0, 0, now - 1)


def test_verdict_stays_until_the_evidence_is_gone():
    cusum = Cusum()
    for step in range(3):
        cusum.step(LOSS, LOSS.nats(9, 200), 9, 200, step * STEP)
    assert cusum.sick
    assert cusum.rate == pytest.approx(9 / 200)
    steps = 0
    while cusum.step(LOSS, LOSS.nats(0, 200), 0, 200, (3 + steps) * STEP):
        steps += 1
    assert 60 < steps < 120, "half a minute to a minute without a loss"
    assert (cusum.value, cusum.rate) == (0.0, 0.0)


FORGETS = LossRules().idle
PATH = replace(FORGETS, forget=LossRules().path_forget)


def until_well(rate, per_step, after, *, test=FORGETS, seed=0, sick_s=30.0):
    """Seconds from the end of a loss at ``rate`` to the end of the verdict, then at ``after``."""
    rng = np.random.default_rng(seed)
    cusum = Cusum()
    step = 0
    while not cusum.sick or step * STEP < sick_s * SEC:
        step += 1
        lost = int(rng.binomial(per_step, rate))
        cusum.step(test, test.nats(lost, per_step), lost, per_step, step * STEP)
    ended = step
    while step < ended + 2 * 1000:
        step += 1
        lost = int(rng.binomial(per_step, after))
        if not cusum.step(test, test.nats(lost, per_step), lost, per_step, step * STEP):
            return (step - ended) / 2
    return None


@pytest.mark.parametrize(
    ("test", "per_step"), [(FORGETS, 200), (PATH, 16)], ids=["link, 400/s", "path, 32/s"]
)
def test_what_lost_three_percent_is_well_soon_after_it_ended(test, per_step):
    took = [until_well(0.03, per_step, 1e-6, test=test, seed=seed) for seed in range(100)]
    assert None not in took
    assert sum(t > 15 for t in took) <= 2, sorted(took)[-5:]
    assert sorted(took)[50] >= FORGETS.forget_ns / SEC - 2, "no sooner: losses come in bursts"


def test_without_forgetting_it_takes_minutes():
    assert until_well(0.03, 16, 0.0, test=replace(PATH, forget=math.inf)) > 300


def test_what_loses_little_is_not_forgotten_between_two_losses():
    """0.1 % at 400 packets a second: a loss each 2.5 s in the mean, for a quarter of an hour."""
    well = [until_well(1e-3, 200, 1e-3, seed=seed) for seed in range(60)]
    assert sum(t is not None for t in well) <= 4, well


def test_a_loss_that_pauses_for_less_than_the_least_time_stays():
    cusum = Cusum()
    for step in range(400):  # half a second in nine
        lost = 20 if step % 18 == 0 or step < 6 else 0
        cusum.step(FORGETS, FORGETS.nats(lost, 200), lost, 200, step * STEP)
        assert cusum.sick or step < 6


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=60))
def test_statistic_stays_within_its_bounds(steps):
    cusum = Cusum()
    for now, (events, exposure) in enumerate(steps):
        cusum.step(LOSS, LOSS.nats(events, exposure), events, exposure, now)
        assert 0 <= cusum.value <= LOSS.ceiling * LOSS.threshold
        assert cusum.started == (cusum.value > 0)
        assert not (cusum.sick and not cusum.started)
        assert math.isfinite(cusum.rate)


def test_rate_that_is_found_lies_between_normal_and_sick():
    assert LOSS.normal < LOSS.least_found < LOSS.sick
    assert LOSS.nats(LOSS.least_found * 1e6, 1e6) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        {"normal": 0.0, "sick": 1.0},
        {"normal": 1.0, "sick": 1.0},
        {"normal": 0.1, "sick": 1.0, "threshold": 0.0},
        {"normal": 0.1, "sick": 1.0, "step_share": 0.0},
        {"normal": 0.1, "sick": 1.0, "ceiling": 0.5},
    ],
)
def test_senseless_parameters_are_refused(bad):
    with pytest.raises(ValueError, match=r"rates|threshold"):
        Test(**bad)
