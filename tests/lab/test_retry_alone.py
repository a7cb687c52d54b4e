"""What excuses a failure, with real pytest runs and workers inside of the test.

A run of workers in a run of workers stood still once in the project's CI, without a word. Hence
these are tests of processes, and a run that stands still says where before it is ended.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.testrun import known_flaky, retry_alone, run_report, totals
from lab.testrun.run_report import Flaky, RunReport

REPO = Path(__file__).resolve().parents[2]
ASAN = "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010"
STANDS_STILL_S = 120.0


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the tests' own conftest: what is run there is reported as the real ones are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    (tmp_path / "conftest.py").symlink_to(REPO / "tests" / "conftest.py")
    markers = "\n".join(f"  {mark}: x" for mark in ("lab", "vm", "alone", "nightly", "gpu"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}\n")
    (tmp_path / known_flaky.FILE).parent.mkdir()
    (tmp_path / known_flaky.FILE).touch()
    # At its end a run with workers removes the temporary folders of all but three runs before it.
    # In the folder of the machine's other runs, that may be a million files of a lab tier.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path / "temporary"))
    return tmp_path


def run_tier(checkout: Path, body: str, *args: str) -> int:
    """First run of a file of tests; pytest's exit status."""
    (checkout / "test_it.py").write_text(body)
    environment = os.environ | {run_report.ENV: "report.json"}
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", *args]
    with subprocess.Popen(command, env=environment, cwd=checkout) as run:
        try:
            return run.wait(STANDS_STILL_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGABRT)  # it prints its threads
            raise


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
    assert (report.passed, report.failed, report.returned) == (1, [], [])
    assert report.flaky == [Flaky("test_it.py::test_it", str(row["log"]))]
    counts = totals.of_pytest(report, "lab")
    assert (counts.passed, counts.failed, len(counts.flaky)) == (2, 0, 1)


LISTED = """
[[test]]
id = "test_it.py::test_it"
first_seen = 2026-11-28
cause = "It did not wait."
mended = "It waits."
"""


@pytest.mark.nightly
def test_three_passes_do_not_excuse_a_test_whose_cause_was_mended(checkout, capfd):
    (checkout / known_flaky.FILE).write_text(LISTED)
    assert run_tier(checkout, COUNTING.format(fails={0}), "-n", "2", "--dist", "loadgroup") == 1
    assert retry_alone.main(["report.json"]) == 1
    (row,) = history(checkout)
    assert (row["flaky"], row["returned"]) == (False, True)
    said = capfd.readouterr().out
    assert f"RETURNED test_it.py::test_it ({row['log']})" in said.splitlines()
    assert "FLAKY" not in said
    assert (checkout / "count").read_text() == "4"
    report = RunReport.read(Path("report.json"))
    assert (report.passed, report.failed, report.flaky) == (1, ["test_it.py::test_it"], [])
    assert report.returned == [Flaky("test_it.py::test_it", str(row["log"]))]


@pytest.mark.parametrize("args", [["-x"], ["--maxfail=1"], ["-x", "-n", "1"]])
def test_a_run_that_stopped_early_is_not_excused(checkout, capfd, args):
    """The tests behind the failed one did not run: passing alone says nothing of them."""
    run_tier(checkout, COUNTING.format(fails={0}), *args)
    assert retry_alone.main(["report.json"]) == 1
    assert "did not run all of its tests: stopping after 1 failures" in capfd.readouterr().out
    assert (checkout / "count").read_text() == "1"


def test_one_failure_of_the_three_stays_a_failure(checkout, capfd):
    assert run_tier(checkout, COUNTING.format(fails={0, 2})) == 1
    assert retry_alone.main(["report.json"]) == 1
    (row,) = history(checkout)
    assert row["flaky"] is False
    said = capfd.readouterr().out
    assert "FLAKY" not in said
    assert "assert 2 not in" in said
    assert (checkout / "count").read_text() == "3"
    counts = totals.of_pytest(RunReport.read(Path("report.json")), "lab")
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
    assert {run_report.ENV!r} not in os.environ
"""


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


def test_lab_tests_that_share_a_lab_are_run_by_one_worker(checkout):
    where = checkout / "tests" / "lab"
    where.mkdir(parents=True)
    (where / "test_together.py").write_text(TOGETHER)
    assert run_tier(checkout, "", "-n", "2", "--dist", "loadgroup", "tests/lab") == 0
    assert len((checkout / "labs").read_text().splitlines()) == 1
