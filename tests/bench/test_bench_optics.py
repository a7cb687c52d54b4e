"""The simulated optics: seeded, with the physics that they claim, and scored as they should be."""

import numpy as np
import pytest

from bench.detect import optics
from bench.detect.optics_world import BITS, WINDOWS, build
from fabricd.predict.signal import ber_of_q, poisson_tail, q_of_ber


@pytest.fixture(scope="module")
def sick():
    return build(3, 40, degrading=True)


def test_a_seed_makes_one_world(sick):
    again = build(3, 40, degrading=True)
    assert again.mode == sick.mode
    for name in ("errors", "rx_dbm", "bias", "celsius", "flaps", "failed", "onset"):
        assert np.array_equal(getattr(again, name), getattr(sick, name), equal_nan=True)
    assert not np.array_equal(build(4, 40, degrading=True).errors, sick.errors)


def test_every_degrading_link_fails_after_its_onset_and_then_is_dark(sick):
    assert (sick.failed < WINDOWS).all()
    assert (sick.onset <= sick.failed).all()
    for link in range(40):
        assert not sick.carrier[link, int(sick.failed[link]) :].any()


def test_healthy_links_have_the_ratios_of_accepted_ones():
    world = build(5, 40, degrading=False)
    ratio = np.median(world.errors / BITS, axis=1)
    assert np.isinf(world.onset[np.isinf(world.failed)]).all()
    assert (ratio < 1e-4).all()
    assert 1e-10 < np.median(ratio) < 1e-6
    grid = world.celsius * 256
    assert np.allclose(grid, np.round(grid))


def test_poisson_tail_by_its_sum():
    for mean, k in ((0.1, 8), (1.0, 16), (5.0, 16)):
        terms, total = np.exp(-mean), 0.0
        for i in range(200):
            total += terms if i >= k else 0.0
            terms *= mean / (i + 1)
        assert float(poisson_tail(np.array(mean), k)) == pytest.approx(total, rel=0.05)


def test_q_and_ratio_are_inverse():
    ratios = 10.0 ** np.arange(-15, -1)
    assert ber_of_q(q_of_ber(ratios)) == pytest.approx(ratios, rel=0.02)


def test_score_counts_failures_named_in_time_and_false_alarms(sick, monkeypatch):
    monkeypatch.setattr(optics, "WINDOWS", 2500)  # The first nine days suffice.
    score = optics.Score()
    optics.play(sick, score)
    assert sum(score.failures.values()) == 40
    assert score.named["sudden"] == 0
    assert 0 < sum(score.named.values()) < 40
    assert all(hours >= optics.LEAD_S / 3600 for hours in score.lead_hours)


def test_table_asks_what_the_issue_asks():
    fine, ill = optics.Score(months=2000, false=3), optics.Score()
    ill.failures.update(dirt=3, sudden=1)
    ill.named.update(dirt=2)
    false, named, *rest = optics.rows(fine, ill)
    assert (false.got, false.ok) == (1.5, False)
    assert (named.got, named.ok) == (50.0, True)
    assert all(row.ok is None for row in rest)
