"""The table of evidence, applied."""

import pytest

from fabricd.detect.rules import RULES, TABLE, Class, CounterJudge

SEC = 10**9


def feed(judge, seconds, start=0, **per_second):
    for second in range(start, start + seconds):
        judge.feed(per_second, 1.0, second * SEC)
    return {str(f.rule.counter): f for f in judge.findings((start + seconds - 1) * SEC)}


def test_every_counter_has_one_rule_and_a_reason():
    assert len(RULES) == len(TABLE)
    assert all(rule.why and rule.threshold > 0 and rule.window_s > 0 for rule in TABLE)


def test_names_and_classes_are_the_vocabulary_s():
    vocabulary = pytest.importorskip("telemetry.counters.vocabulary")
    for rule in TABLE:
        if not rule.counter.startswith("probe_"):
            assert vocabulary.COUNTERS[rule.counter].cls.value == rule.cls.value, rule.counter


@pytest.mark.parametrize("rule", [r for r in TABLE if r.cls is Class.HARD], ids=lambda r: r.counter)
def test_hard_evidence_counts_at_once_and_for_its_window(rule):
    judge = CounterJudge()
    judge.feed({rule.counter: int(rule.threshold)}, 1.0, 0)
    assert [f.rule for f in judge.findings(0)] == [rule]
    window = round(rule.window_s * SEC)
    assert judge.findings(window - 1)
    assert judge.findings(window) == []


@pytest.mark.parametrize(
    "rule",
    [r for r in TABLE if r.cls is Class.SOFT and not r.counter.startswith("probe_")],
    ids=lambda r: r.counter,
)
def test_soft_evidence_is_found_at_its_threshold_and_not_at_a_tenth(rule):
    window = round(rule.window_s)
    sick, noise, debt = CounterJudge(), CounterJudge(), 0.0
    for second in range(4 * window):
        debt += rule.threshold / rule.window_s
        sick.feed({rule.counter: int(debt)}, 1.0, second * SEC)
        debt -= int(debt)
        # The same number in one go, once in ten windows: noise.
        noise.feed({rule.counter: int(rule.threshold) if second == 0 else 0}, 1.0, second * SEC)
        assert not noise.findings(second * SEC)
    assert [f.rule for f in sick.findings(4 * window * SEC)] == [rule]


def test_much_worse_is_found_much_sooner():
    assert "crc_errors" in feed(CounterJudge(), 4, crc_errors=1000)
    assert feed(CounterJudge(), 4, crc_errors=1) == {}


def test_congestion_is_told_and_is_no_fault():
    found = feed(CounterJudge(), 12, cnp_sent=100_000, pause_rx=100_000)
    assert {f.rule.cls for f in found.values()} == {Class.CONGESTION}


def test_unknown_counters_and_resets_are_no_evidence():
    judge = CounterJudge()
    judge.feed({"no_such": 10**9, "link_downed": -5}, 1.0, 0)
    judge.feed({"link_downed": 3}, 0.0, 0)
    assert judge.findings(0) == []
    judge.feed({"link_downed": 1}, 1.0, 0)
    judge.reset("link_downed")
    assert judge.findings(0) == []


def test_hard_comes_first():
    judge = CounterJudge()
    feed(judge, 10, crc_errors=100)
    judge.feed({"resets": 1}, 1.0, 10 * SEC)
    assert [f.rule.cls for f in judge.findings(10 * SEC)] == [Class.HARD, Class.SOFT]
    assert str(judge.findings(10 * SEC)[0]) == "resets"
