"""Which failures of the lab and VM tiers are excused, and what a run says at its end."""

from dataclasses import replace

import pytest

from lab.testrun import retry_alone, totals
from lab.testrun.run_report import Failure, Flaky, RunReport

ASAN = "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010"


def report_of(*failures: tuple[str, str, str], passed: int = 0) -> RunReport:
    return RunReport(passed, 0, [Failure(*failure) for failure in failures])


def failed(number: int) -> tuple[str, str, str]:
    return f"tests/lab/test_a.py::test_{number}", "call", "assert 1 == 2"


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (report_of(failed(1)), None),
        (report_of(*[failed(n) for n in range(5)]), None),
        (report_of(("a", "setup", "TimeoutError: no answer")), None),
        (report_of(*[failed(n) for n in range(6)]), "6 tests failed, more than 5"),
        (report_of(("a", "call", ASAN)), "a failed in call, which passing alone does not excuse"),
        (report_of(failed(1), ("a", "teardown", "x")), "a failed in teardown, "),
        (report_of(("tests/lab/test_a.py", "collect", "SyntaxError")), "failed in collect, "),
        (report_of(failed(1), ("a", "???", "worker 'gw0' crashed")), "a failed in ???, "),
        (report_of(passed=3), "without a failed test"),
        (replace(report_of(failed(1)), stopped="stopping after 1 failures"), "after 1 failures"),
        (None, "ended without a report"),
    ],
)
def test_a_few_failed_tests_without_a_report_in_a_log_are_retried(report, why):
    refusal = retry_alone.refusal(report)
    assert refusal == why if why is None else why in refusal


@pytest.mark.parametrize(
    ("report", "status", "passed"),
    [
        (RunReport(passed=1), 0, True),
        (RunReport(passed=1), 1, False),
        (RunReport(skipped=1), 0, False),
        (RunReport(), 5, False),
        (report_of(failed(1)), 1, False),
        (report_of(("a", "teardown", "x")), 1, False),
        (None, 0, False),
    ],
)
def test_only_a_passed_test_passed(report, status, passed):
    assert retry_alone.passed_once(report, status) is passed


JUNIT = """<?xml version="1.0"?>
<testsuite name="Linux" tests="4" failures="1" disabled="1" skipped="1">
  <testcase name="a" time="3.25" status="run"/>
  <testcase name="b" status="fail"><failure/></testcase>
  <testcase name="c" status="disabled"/><testcase name="d" status="notrun"/>
</testsuite>
"""


def test_the_totals_add_all_that_the_tiers_left(tmp_path, capsys):
    took = {"tests/unit/test_a.py::test_x": 1.5, "tests/unit/test_a.py::test_y": 0.9}
    RunReport(10, 2, seconds=took).write(tmp_path / "unit.json")
    flaky = [Flaky("tests/lab/test_a.py::test_x", "build/log/flaky/x.log")]
    RunReport(5, 1, [], flaky).write(tmp_path / "lab.json")
    again = Failure("tests/vm/test_b.py::test_y", "call", "assert 1 == 2")
    returned = [Flaky(again.test, "build/log/flaky/y.log")]
    RunReport(2, 0, [again], returned=returned).write(tmp_path / "vm.json")
    (tmp_path / "ctest-1-release.xml").write_text(JUNIT)
    (tmp_path / "tiers").write_text("unit 59 0\nlab 61 1\n")
    assert totals.main([str(tmp_path), "125", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[run] the slowest tests:",
        "     3.2 s  ctest-1-release a",
        "     1.5 s  unit tests/unit/test_a.py::test_x",
        "FLAKY tests/lab/test_a.py::test_x (build/log/flaky/x.log)",
        "RETURNED tests/vm/test_b.py::test_y (build/log/flaky/y.log)",
        "[run] total: 19 passed, 2 failed, 5 skipped, 1 flaky in 2 min 5 s: "
        "unit 59 s, lab 1 min 1 s FAILED",
        "19 passed, 2 failed, 5 skipped",
    ]


def test_the_slowest_tests_of_all_tiers_are_named_and_no_more_than_twenty(tmp_path, capsys):
    for tier in ("lab", "vm"):
        took = {f"test_{number}": float(number) for number in range(60)}
        RunReport(60, 0, seconds=took).write(tmp_path / f"{tier}.json")
    totals.main([str(tmp_path), "125", "0"])
    lines = capsys.readouterr().out.splitlines()
    named = lines[1 : lines.index(next(line for line in lines if "total:" in line))]
    assert len(named) == totals.SLOWEST
    assert named[0].split() == ["59.0", "s", "vm", "test_59"]
    assert named[-1].split() == ["50.0", "s", "lab", "test_50"]


@pytest.mark.parametrize(
    ("name", "text", "status", "failures"),
    [
        ("unit.json", '{"passed": 3', 1, 1),
        ("ctest-1-asan.xml", "<testsuite", 1, 1),
        ("ctest-1-asan.xml", '<testsuite><testcase time="x" status="run"/></testsuite>', 1, 1),
        ("tiers", "lint 3 1\n", 1, 1),
        ("tiers", "lint 3 0\n", 0, 0),
    ],
)
def test_a_run_that_failed_never_says_that_nothing_failed(
    tmp_path, capsys, name, text, status, failures
):
    (tmp_path / name).write_text(text)
    totals.main([str(tmp_path), "3", str(status)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"0 passed, {failures} failed, 0 skipped"
