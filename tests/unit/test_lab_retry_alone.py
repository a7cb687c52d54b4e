"""Which failures of the lab and VM tiers are excused, and what a run says at its end."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab import retry_alone, testreport, totals
from lab.testreport import Failure, Flaky, RunReport

REPO = Path(__file__).resolve().parents[2]
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


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the tests' own conftest: what is run there is reported as the real ones are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    (tmp_path / "conftest.py").symlink_to(REPO / "tests" / "conftest.py")
    markers = "\n".join(f"  {mark}: x" for mark in ("lab", "vm", "alone", "nightly", "gpu"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}\n")
    return tmp_path


def run_tier(checkout: Path, body: str, *args: str) -> int:
    """First run of a file of tests; pytest's exit status."""
    (checkout / "test_it.py").write_text(body)
    environment = os.environ | {testreport.ENV: "report.json"}
    command = [sys.executable, "-m", "pytest", "-q", *args]
    return subprocess.run(command, env=environment, check=False, cwd=checkout).returncode


# Fails in the runs whose numbers are given; a run is a process.
COUNTING = """
from pathlib import Path
import pytest

@pytest.mark.xdist_group("machines")
def test_it():
    count = Path("count")
    number = int(count.read_text()) if count.exists() else 0
    count.write_text(str(number + 1))
    print("run", number)
    assert number not in {fails}

def test_beside():
    pass
"""


def history(checkout: Path) -> list[dict[str, object]]:
    text = (checkout / "build/log/retry_alone.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.patient
def test_three_passes_of_three_excuse_a_failure_and_keep_its_log(checkout, capfd):
    beside = ("-n", "2", "--dist", "loadgroup")
    assert run_tier(checkout, COUNTING.format(fails={0}), *beside) == 1
    assert retry_alone.main(["report.json"]) == 0
    (row,) = history(checkout)
    assert row["flaky"] is True
    assert f"FLAKY test_it.py::test_it ({row['log']})" in capfd.readouterr().out.splitlines()
    log = (checkout / str(row["log"])).read_text()
    assert "assert 0 not in {0}" in log
    assert log.count("1 passed") == 3
    assert (checkout / "count").read_text() == "4"

    report = RunReport.read(Path("report.json"))
    assert report == RunReport(1, 0, [], [Flaky("test_it.py::test_it", str(row["log"]))])
    counts = totals.of_pytest(report)
    assert (counts.passed, counts.failed, len(counts.flaky)) == (2, 0, 1)


@pytest.mark.patient
@pytest.mark.parametrize("args", [["-x"], ["--maxfail=1"], ["-x", "-n", "1"]])
def test_a_run_that_stopped_early_is_not_excused(checkout, capfd, args):
    """The tests behind the failed one did not run: passing alone says nothing of them."""
    run_tier(checkout, COUNTING.format(fails={0}), *args)
    assert retry_alone.main(["report.json"]) == 1
    assert "did not run all of its tests: stopping after 1 failures" in capfd.readouterr().out
    assert (checkout / "count").read_text() == "1"


@pytest.mark.patient
def test_one_failure_of_the_three_stays_a_failure(checkout, capfd):
    assert run_tier(checkout, COUNTING.format(fails={0, 2})) == 1
    assert retry_alone.main(["report.json"]) == 1
    (row,) = history(checkout)
    assert row["flaky"] is False
    said = capfd.readouterr().out
    assert "FLAKY" not in said
    assert "assert 2 not in" in said
    assert (checkout / "count").read_text() == "3"
    counts = totals.of_pytest(RunReport.read(Path("report.json")))
    assert (counts.passed, counts.failed, len(counts.flaky)) == (1, 1, 0)


UNEXCUSED = f"""
import os
import pytest

@pytest.fixture
def lab():
    yield
    assert 0, "a log holds a report"

def test_teardown(lab):
    pass

def test_printed():
    print({ASAN!r})
    assert False

def test_alone():
    assert False

def test_inherits_nothing():
    assert {testreport.ENV!r} not in os.environ
"""


@pytest.mark.patient
def test_what_is_never_excused_is_not_even_run_again(checkout, capfd):
    (checkout / "test_broken.py").write_text("import no_such_module\n")
    args = ["-n", "1", "--continue-on-collection-errors", "test_it.py", "test_broken.py"]
    assert run_tier(checkout, UNEXCUSED, *args) == 1
    report = RunReport.read(Path("report.json"))
    assert (report.passed, report.skipped, len(report.failed)) == (1, 0, 4)
    assert {(f.test, f.phase) for f in report.failures if not f.excusable} == {
        ("test_it.py::test_teardown", "teardown"),
        ("test_it.py::test_printed", "call"),
        ("test_broken.py", "collect"),
    }
    assert retry_alone.main(["report.json"]) == 1
    assert "no retry: " in capfd.readouterr().out
    assert not (checkout / "build").exists()


TOGETHER = """
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def lab():
    with Path("labs").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")

@pytest.mark.parametrize("number", range(6))
def test_it(lab, number):
    pass

@pytest.mark.parametrize("number", range(6))
def test_by_itself(number):
    pass
"""


@pytest.mark.patient
def test_lab_tests_that_share_a_lab_are_run_by_one_worker(checkout):
    where = checkout / "tests" / "lab"
    where.mkdir(parents=True)
    (where / "test_together.py").write_text(TOGETHER)
    assert run_tier(checkout, "", "-n", "2", "--dist", "loadgroup", "tests/lab") == 0
    assert len((checkout / "labs").read_text().splitlines()) == 1


JUNIT = """<?xml version="1.0"?>
<testsuite name="Linux" tests="4" failures="1" disabled="1" skipped="1">
  <testcase name="a" status="run"/><testcase name="b" status="fail"><failure/></testcase>
  <testcase name="c" status="disabled"/><testcase name="d" status="notrun"/>
</testsuite>
"""


def test_the_totals_add_all_that_the_tiers_left(tmp_path, capsys):
    RunReport(10, 2).write(tmp_path / "unit.json")
    flaky = [Flaky("tests/lab/test_a.py::test_x", "build/log/flaky/x.log")]
    RunReport(5, 1, [], flaky).write(tmp_path / "lab.json")
    (tmp_path / "ctest-1-release.xml").write_text(JUNIT)
    (tmp_path / "tiers").write_text("unit 59 0\nlab 61 1\n")
    assert totals.main([str(tmp_path), "125", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "FLAKY tests/lab/test_a.py::test_x (build/log/flaky/x.log)",
        "[run] total: 17 passed, 1 failed, 5 skipped, 1 flaky in 2 min 5 s: "
        "unit 59 s, lab 1 min 1 s FAILED",
        "17 passed, 1 failed, 5 skipped",
    ]


@pytest.mark.parametrize(
    ("name", "text", "status", "failures"),
    [
        ("unit.json", '{"passed": 3', 1, 1),
        ("ctest-1-asan.xml", "<testsuite", 1, 1),
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
