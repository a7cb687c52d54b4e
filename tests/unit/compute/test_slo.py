"""The objective and its confidence: 29 failures without a miss, and not one fewer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.failures import Failure, complete, failure_of
from compute.slo import Share, lower_bound, report, upper_bound


@pytest.mark.parametrize(
    ("kept", "failures", "verdict"),
    [
        (0, 0, "not enough data"), (28, 28, "not enough data"), (29, 29, "met"),
        (45, 46, "met"), (44, 45, "not enough data"), (0, 1, "not enough data"), (0, 2, "broken"),
        (5, 10, "broken"), (85, 100, "not enough data"), (83, 100, "broken"), (96, 100, "met"),
        (95, 100, "not enough data"),
    ],
)  # fmt: skip
def test_verdicts(kept, failures, verdict):
    assert Share("all", failures, kept).verdict == verdict


def test_bounds_are_those_of_the_tables():
    # Clopper and Pearson, one-sided 95 %: 0.05 ** (1 / n) without a miss; 9 of 10: 0.606.
    assert lower_bound(29, 29) == pytest.approx(0.05 ** (1 / 29))
    assert lower_bound(9, 10) == pytest.approx(0.6058, abs=1e-4)
    assert upper_bound(1, 10) == pytest.approx(1 - 0.6058, abs=1e-4)
    assert lower_bound(0, 5) == 0
    assert upper_bound(0, 0) == 1


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_share_lies_between_its_bounds(a, b):
    kept, failures = min(a, b), max(a, b)
    low, high = lower_bound(kept, failures), upper_bound(kept, failures)
    assert 0 <= low <= high <= 1
    if failures:
        assert low <= kept / failures <= high


def record(**fields):
    base = {"job": "j", "ranks": [1], "reason": "h1 is lost", "generation": 2,
            "committed_ms": 1500.0, "class": "host", "steps_lost": 0}  # fmt: skip
    return complete("recovery", base | fields, protected=True, ranks=4)


def test_a_record_says_what_the_failure_was():
    assert failure_of("recovery", record()) == Failure("j", "host", "recovered", True, 1.5, 0, 6.0)
    failed = complete(
        "job_failed", {"job": "j", "reason": "x", "steps_lost": 7}, protected=False, ranks=4
    )
    assert failure_of("job_failed", failed) == Failure("j", "job", "failed", False, None, 7, 0.0)
    assert not failure_of("job_failed", failed).kept_progress
    assert failure_of("fence", {"job": "j"}) is None
    assert complete("fence", {"job": "j"}, protected=True, ranks=4) == {"job": "j"}


def test_what_the_core_says_itself_is_kept():
    known = record(**{"class": "planned", "steps_lost": 3, "protected": False})
    assert failure_of("recovery", known).steps_lost == 3
    assert failure_of("recovery", known).failure_class == "planned"
    assert not failure_of("recovery", known).kept_progress


@pytest.mark.parametrize("name", ["class", "protected", "steps_lost", "gpu_seconds", "job"])
@pytest.mark.parametrize("value", [None, [], "x", -1.5])
def test_a_record_that_makes_no_sense_counts_as_none(name, value):
    fields = record() | {name: value}
    if not (name == "job" and value == "x") and not (name == "gpu_seconds" and value == -1.5):
        assert failure_of("recovery", fields) is None


def test_a_report_has_all_failures_first():
    failures = [failure_of("recovery", record()) for _ in range(30)]
    made = report([*failures, failure_of("recovery", record(steps_lost=2))])
    assert [(one.name, one.failures, one.kept) for one in made.shares] == [
        ("all", 31, 30), ("protected", 31, 30), ("class host", 31, 30),
    ]  # fmt: skip
    assert made.verdict == "not enough data"
    assert report(failures).verdict == "met"
    assert made.as_json()["pause_s"]["median"] == 1.5
    assert report([]).as_json()["pause_s"]["median"] is None


def test_a_planned_move_is_no_failure():
    planned = failure_of("recovery", record(**{"class": "planned", "steps_lost": 0}))
    made = report([planned] * 40)
    assert [(one.name, one.failures) for one in made.shares] == [
        ("all", 0), ("protected", 0), ("class planned", 40),
    ]  # fmt: skip
    assert made.verdict == "not enough data"
