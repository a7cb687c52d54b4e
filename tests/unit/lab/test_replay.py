"""A recording played to the rules: what was recorded stays, what goes on goes on as it was."""

import pytest

from lab.observe.replay import (
    HISTORY_S,
    STEP_S,
    Phase,
    Track,
    _duration,
    _notation,
    document,
    firing,
    play,
    tracks,
)

BEFORE = HISTORY_S // STEP_S


def track(name, values, begin=1000.0, **labels):
    """One sample a second."""
    times = [begin + i for i, value in enumerate(values) if value is not None]
    kept = [float(value) for value in values if value is not None]
    return Track(tuple(sorted({"__name__": name, **labels}.items())), times, kept)


PHASES = [Phase(1000, 1010, 0), Phase(1010, 1030, 600), Phase(1030, 1050, 600)]


def test_what_was_recorded_is_played_as_it_was():
    gauge = track("fabricd_link_state", [1] * 11 + [3] * 20 + [1] * 30)
    out = play(gauge, PHASES)
    recorded = [gauge.at(1000 + s) for s in range(0, 10, STEP_S)]
    assert out[: BEFORE + 2] == [1.0] * BEFORE + recorded
    under = out[BEFORE + 2 : BEFORE + 2 + 4 + 120]
    assert under == [1.0] + [3.0] * 123
    assert set(out[-120:]) == {1.0}
    assert len(out) == BEFORE + 2 + 4 + 120 + 4 + 120


def test_a_counter_goes_on_at_the_rate_that_it_had_and_never_falls():
    # 100/s while all is well, none under the fault, 50/s after it.
    values = [100 * i for i in range(11)] + [1000] * 20 + [1000 + 50 * i for i in range(30)]
    out = play(track("fabricd_x_total", [20_000 + v for v in values]), PHASES)
    assert out == sorted(out)
    assert out[BEFORE - 1] - out[BEFORE - 2] == 100 * STEP_S
    held = out[BEFORE + 6 : BEFORE + 6 + 120]
    assert set(held) == {21_000.0}
    assert out[-1] - out[-2] == 50 * STEP_S
    assert out[-1] == pytest.approx(21_000 + 50 * 20 + 50 * 600, abs=100)


def test_a_gauge_that_is_noisy_stays_so():
    noisy = track("fabricd_link_queueing_delay_seconds", [i % 3 for i in range(60)])
    assert set(play(noisy, PHASES)[-100:]) == {0.0, 1.0, 2.0}


def test_a_series_that_ends_is_gone_and_comes_back():
    gone = track("fabricd_link_state", [1] * 12 + [None] * 20 + [1] * 30)
    out = play(gone, PHASES)
    assert out[BEFORE + 5 : BEFORE + 120] == [None] * 115
    assert out[-1] == 1.0
    assert "stale _x" in _notation(out)


def test_promtool_s_notation_is_short():
    assert _notation([1.0, 1.0, 1.0, 2.5, None, None, None, 3.0]) == "1.0x2 2.5 stale _x2 3.0"
    assert _notation([None, None, 1.0]) == "_x2 1.0"
    assert [_duration(s) for s in (60, 75, 3600, 3725)] == ["1m", "1m15s", "1h", "1h2m5s"]


def test_the_answer_of_prometheus_is_read():
    (one,) = tracks([{"metric": {"__name__": "up", "instance": "h0"}, "values": [[1.5, "1"]]}])
    assert one.labels == (("__name__", "up"), ("instance", "h0"))
    assert (one.at(1.4), one.at(1.5), one.at(3.9), one.at(4.1)) == (None, 1.0, 1.0, None)


def test_the_shipped_rules_fire_and_say_so(tmp_path):
    """promtool's own words are understood: one alert under the fault, none before or after."""
    label = {"instance": "h0", "link": "rail0", "rail": "0"}
    state = track("fabricd_link_state", [1] * 11 + [3] * 20 + [1] * 30, **label)
    moments = {"before": 10, "under": 600, "later": 1200}
    found = firing(document([state], PHASES, moments), tmp_path, moments)
    assert found == {
        "before": set(),
        "under": {("FabricLinkDown", "instance=h0", "link=rail0")},
        "later": set(),
    }
    quiet = track("fabricd_link_state", [1] * 61, **label)
    found = firing(document([quiet], PHASES, moments), tmp_path, moments)
    assert found == {moment: set() for moment in moments}


def test_what_promtool_says_else_is_an_error(tmp_path):
    bad = document([track("fabricd_link_state", [1] * 61)], PHASES, {"under": 600})
    with pytest.raises(ValueError, match="promtool"):
        firing(bad.replace("count by", "kount by"), tmp_path, {"under": 600})
