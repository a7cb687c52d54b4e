"""The figures about gray loss: found in time, false alarms computed as they are simulated."""

from dataclasses import replace

import numpy as np
import pytest

from bench.detect.alarms import YEAR_S, alarms_of_bursts, years_to_alarm
from bench.detect.gray import DEFAULT, FAST, RAILS, found_after, paths
from fabricd.detect.loss_rules import LossRules
from fabricd.detect.sequential import Cusum, Test

Test.__test__ = False
RULES = LossRules()


def test_computed_run_length_is_the_simulated_one():
    """With a threshold so low that it alarms every few minutes."""
    test = Test(1e-5, 1e-3, threshold=6.0, step_share=1.0)
    rng = np.random.default_rng(1)
    cusum, alarms, readings = Cusum(), 0, 200_000
    for number, lost in enumerate(rng.poisson(200 * 3e-5, readings), start=1):
        if cusum.step(test, test.nats(int(lost), 200), int(lost), 200, number * 500_000_000):
            alarms, cusum = alarms + 1, Cusum()
    simulated = readings * 0.5 / alarms
    assert years_to_alarm(test, 3e-5, 400) * YEAR_S == pytest.approx(simulated, rel=0.3)


def test_a_link_is_seldom_called_sick_for_what_is_usual_of_it():
    assert years_to_alarm(RULES.idle, 1e-6, 400) > 5e4
    known = replace(RULES.idle, normal=RULES.usual)
    assert years_to_alarm(known, RULES.usual, 400) > 100
    assert years_to_alarm(RULES.idle, RULES.usual, 400) > 0.5, "until it is known"


def test_bursts_with_a_queue_are_judged_by_other_rates():
    def often(within, loss):
        return alarms_of_bursts(
            RULES.idle, within, per_minute=6, length_s=(0.05, 2.0), loss=loss, packets=400,
            links=400, years=1e-4,
        )  # fmt: skip

    tail_drops, much = (1e-4, 5e-3), (0.2, 0.3)
    assert often(RULES.congested, tail_drops)[0] == 0
    assert often(RULES.idle, tail_drops)[0] > 0
    assert often(RULES.congested, much)[0] > 0


@pytest.mark.parametrize("world", [FAST, DEFAULT], ids=lambda w: w.text)
def test_links_have_the_packets_that_are_asked_for_and_two_peers_most_of_them(world):
    for host in range(world.hosts):
        own = paths(world, host)
        for rail in range(RAILS):
            rates = sorted(p.packets for p in own if p.rail == rail)
            assert sum(rates) >= 400 - 1e-6
            assert max(rates) < 0.45 * sum(rates)


@pytest.mark.parametrize("world", [FAST, DEFAULT], ids=lambda w: w.text)
@pytest.mark.parametrize(("percent", "asked"), [(1.0, 3.0), (0.1, 30.0)])
def test_gray_loss_is_found_in_time(world, percent, asked):
    took = [found_after(world, percent, seed) for seed in range(16)]
    assert np.median(took) < asked / 2
    assert sum(t > asked for t in took) <= 1
