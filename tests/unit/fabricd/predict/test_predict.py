"""Prediction: what counts as a trend, what does not, and that a restart changes nothing."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.predict.forecast import weight
from fabricd.predict.risk import RULES, Predictor, Rules, Window
from fabricd.predict.signal import ber_of_q, q_of_ber
from fabricd.predict.trend import Trend

pytestmark = pytest.mark.virtual_time

BITS = 4.25e11 * 300
NAMES = ("rail0", "rail1")
DAY = 288


def window(n=2, **changed):
    """One window of a sound link: BER 1e-8, -2 dBm, 60 mA, 48 °C."""
    known = {
        "up": np.ones(n, bool),
        "bits": np.full(n, BITS),
        "errors": np.full(n, BITS * 1e-8),
        "tail": np.zeros(n),
        "lost": np.zeros(n),
        "rx_dbm": np.full(n, -2.0),
        "tx_dbm": np.full(n, 0.5),
        "bias": np.full(n, 60.0),
        "celsius": np.full(n, 48.0),
        "retransmits": np.zeros(n),
        "marks": np.zeros(n),
        "flaps": np.zeros(n),
        "rx_low_dbm": np.full(n, np.nan),
        "hot_celsius": np.full(n, np.nan),
    }
    return Window(**known | changed)


def faded(db, n=2):
    """Errors of a link that was at BER 1e-8 and has lost ``db`` of its light; rail1 stays."""
    ber = np.full(n, 1e-8)
    ber[0] = float(ber_of_q(q_of_ber(np.array(1e-8)) - db))
    return BITS * ber


@cache
def _known(days):
    predictor, rng = Predictor(NAMES), np.random.default_rng(1)
    for _ in range(int(days * DAY)):
        predictor.step(window(errors=BITS * 1e-8 * np.exp(0.02 * rng.standard_normal(2))))
    return predictor.save()


def warmed(days=1.0):
    """A predictor that knows its links."""
    predictor = Predictor(NAMES)
    predictor.restore(_known(days))
    return predictor


@given(st.floats(-17, -1))
def test_q_and_back(exponent):
    ber = 10.0**exponent
    assert float(ber_of_q(q_of_ber(np.array(ber)))) == pytest.approx(ber, rel=0.03)


def test_q_of_known_ratios():
    """Q = 6 (7.78 dB) is a bit error ratio of 1e-9: Agrawal, section 4.6."""
    assert float(q_of_ber(np.array(1e-9))) == pytest.approx(7.78, abs=0.01)


def test_sound_links_have_no_risk():
    predictor = warmed()
    assert predictor.risk.tolist() == [0, 0]
    assert predictor.evidence(0) == {}


@pytest.mark.parametrize("hours", [2, 8, 48])
def test_a_steady_fall_is_named_before_the_limit_and_the_time_left_is_told(hours):
    predictor = warmed()
    hand = float(q_of_ber(np.array(1e-8)) - q_of_ber(np.array(2.4e-4)))
    steps = hours * 12
    for i in range(steps):
        predictor.step(window(errors=faded(hand * i / steps)))
        if predictor.named[0]:
            break
    assert predictor.named.tolist() == [True, False]
    assert (steps - i) * 300 >= 600
    assert "fec_trend" in predictor.evidence(0)
    assert predictor.left_s[0] == pytest.approx((steps - i) * 300, rel=0.5, abs=900)


def test_one_step_is_no_trend():
    predictor = warmed()
    for _ in range(2 * DAY):
        predictor.step(window(errors=faded(1.5)))
        assert not predictor.named.any()


def test_two_steps_are():
    predictor = warmed()
    for db in (0.7, 1.5):
        for _ in range(DAY // 2):
            predictor.step(window(errors=faded(db)))
    assert predictor.named.tolist() == [True, False]
    assert "fec_steps" in predictor.evidence(0)


def test_a_fall_that_comes_back_forgets_its_steps():
    predictor = warmed()
    for db in (0.7, 0.0, 0.7, 0.0, 1.5):
        for _ in range(DAY // 4):
            predictor.step(window(errors=faded(db)))
            assert not predictor.named.any()


def test_retraining_at_a_flap_is_no_step():
    predictor = warmed()
    for db in (0.6, 1.5):
        predictor.step(window(up=np.array([False, True]), flaps=np.array([1.0, 0.0])))
        for _ in range(DAY // 2):
            predictor.step(window(errors=faded(db)))
            assert not predictor.named.any()


def test_bad_readings_change_nothing():
    predictor = warmed()
    rng = np.random.default_rng(3)
    for _ in range(DAY):
        errors = BITS * 1e-8 * np.exp(0.02 * rng.standard_normal(2))
        if rng.random() < 0.05:
            errors[0] = np.nan if rng.random() < 0.5 else BITS * 1e-3
        predictor.step(window(errors=errors))
        assert "fec_trend" not in predictor.evidence(0)
        assert "fec_steps" not in predictor.evidence(0)


def test_bursts_again_and_again():
    predictor = warmed()
    for i in range(4 * 12):
        lost = np.array([1000.0 if i % 4 == 0 else 0.0, 0.0])
        predictor.step(window(lost=lost))
        if i < 12:
            assert not predictor.named.any(), "one hour of work on a cable is not enough"
    assert predictor.named.tolist() == [True, False]
    assert list(predictor.evidence(0)) == ["fec_bursts"]


def test_more_errors_than_the_standard_allows():
    predictor = warmed(1.5)
    for _ in range(12):
        predictor.step(window(errors=np.array([BITS * 3e-4, BITS * 1e-8])))
    assert "fec_limit" in predictor.evidence(0)
    assert predictor.named.tolist() == [True, False]


def test_a_laser_that_wears_out():
    """By windows of half an hour: it takes weeks."""
    predictor, day = Predictor(NAMES, Rules(window_s=1800)), 48
    for _ in range(9 * day):
        predictor.step(window())
    for i in range(7 * day):
        bias = np.array([60.0 * (1 + 0.5 * i / (7 * day)), 60.0])
        predictor.step(window(bias=bias))
        if predictor.named[0]:
            break
    assert "laser_trend" in predictor.evidence(0)
    assert predictor.named.tolist() == [True, False]
    assert i < 6 * day


@pytest.mark.nightly
def test_bias_that_follows_temperature_is_none():
    predictor = Predictor(NAMES)
    rng = np.random.default_rng(5)
    for i in range(12 * DAY):
        warmth = np.array([4 * np.sin(i / 40) + i / DAY, 0.0]) + 0.1 * rng.standard_normal(2)
        predictor.step(window(celsius=48 + warmth, bias=60 * (1 + 0.01 * warmth)))
        assert "laser_trend" not in predictor.evidence(0)


def test_light_alone_where_nothing_counts_fec():
    predictor = Predictor(NAMES)
    none = np.full(2, np.nan)
    low = np.full(2, -10.0)
    rng = np.random.default_rng(7)
    for i in range(3 * DAY):
        down = max(0.0, i - DAY) * 8 / (2 * DAY)
        rx = np.array([-2.0 - down, -2.0]) + 0.01 * rng.standard_normal(2)
        predictor.step(window(errors=none, bits=none, rx_dbm=rx, rx_low_dbm=low))
        if predictor.named[0]:
            break
    assert list(predictor.evidence(0)) == ["light_trend", "light_falls"]
    assert i < 3 * DAY - 2


def test_congestion_explains_retransmissions():
    predictor = warmed()
    for _ in range(100):
        retransmits, marks = np.array([500.0, 500.0]), np.array([0.0, 9000.0])
        predictor.step(window(retransmits=retransmits, marks=marks))
    assert list(predictor.evidence(0)) == ["retransmits"]
    assert predictor.evidence(1) == {}
    assert not predictor.named.any()


def test_a_tail_beyond_its_mean_is_told():
    predictor = warmed()
    for _ in range(20):
        predictor.step(window(tail=np.array([1e5, 0.0])))
    assert list(predictor.evidence(0)) == ["fec_tail"]
    assert not predictor.named.any()


def test_weak_evidence_never_names():
    weak = [strength for name, (strength, _) in RULES.items() if strength < 0.5]
    assert len(weak) == 5
    assert 1 - np.prod([1 - strength for strength in weak]) < Rules().alarm
    assert "light_falls" in RULES


@given(st.floats(0, 1), st.floats(0, 1))
def test_weight_falls_with_risk_and_never_to_nothing(one, other):
    low, high = sorted((one, other))
    assert 0.25 <= weight(high) <= weight(low) <= 1
    assert (weight(high) < 1) == (high >= Rules().alarm)


def test_a_restart_changes_nothing():
    """Saved as JSON and restored in the middle: the same risks to the last bit."""
    one, other = warmed(), None
    for i in range(150):
        seen = window(errors=faded(i * 0.014), flaps=np.array([float(i == 10), 0.0]))
        if i == 75:
            other = Predictor(NAMES)
            other.restore(json.loads(json.dumps(one.save())))
        risk = one.step(seen)
        if other is not None:
            assert other.step(seen).tolist() == risk.tolist()
            assert other.named.tolist() == one.named.tolist()
    assert one.named[0]


def _broken(document, how):
    bent = json.loads(json.dumps(document))
    how(bent)
    return bent


@pytest.mark.parametrize(
    "how",
    [
        lambda d: d.pop("names"),
        lambda d: d.update(names=["rail0"]),
        lambda d: d["trends"].pop(),
        lambda d: d["arrays"].update(risk=[0.0]),
        lambda d: d["arrays"].update(_again=[0.0, float("inf")]),
        lambda d: d["trends"][0]["scales"][1].update(filled=99),
        lambda d: d["trends"][0]["scales"][1].update(diffs="x"),
        lambda d: d.update(trends=None),
    ],
)
def test_a_document_that_is_none_is_refused_and_changes_nothing(how):
    predictor = warmed(0.1)
    before = predictor.save()
    with pytest.raises((KeyError, TypeError, ValueError)):
        predictor.restore(_broken(before, how))
    assert predictor.save() == before


@given(
    st.lists(
        st.tuples(*[st.floats(min_value=-1e9, max_value=1e15) | st.just(float("nan"))] * 6),
        min_size=1,
        max_size=30,
    )
)
def test_any_numbers_give_a_risk(rows):
    predictor = Predictor(NAMES)
    for errors, lost, rx, bias, celsius, flaps in rows:
        pair = np.ones(2)
        risk = predictor.step(
            window(
                errors=np.abs(errors) * pair,
                lost=np.abs(lost) * pair,
                rx_dbm=rx * pair,
                bias=bias * pair,
                celsius=celsius * pair,
                flaps=np.abs(flaps) * pair,
            )
        )
        assert ((risk >= 0) & (risk <= 1)).all()


def test_trend_of_noise_is_none():
    trend, rng = Trend(400), np.random.default_rng(11)
    for _ in range(10 * DAY):
        trend.step(rng.normal(0, 0.05, 400))
        assert not trend.falling().any()
