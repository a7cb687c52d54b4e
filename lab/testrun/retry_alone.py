"""Runs each failed test of a tier three times alone.

``python -m lab.testrun.retry_alone REPORT.json``

Lab and VM tests run real processes on a machine that others load, so one of them may fail for want
of the machine. A test that passes three times of three alone is *flaky*: its name and the path of
its kept log are printed, the totals count it, and the run goes on. Everything else stays failed:

- a test that was flaky before (`lab.testrun.known_flaky`): it *returned*;
- one failure of the three, or a run that skips the test;
- more than `MOST` failed tests: that many are no accident;
- a run that was stopped early (``-x``, ``--maxfail``): the tests after that did not run;
- a sanitizer's report, a failed teardown (the logs of a lab), an uncollectable file.

Kept: ``build/log/flaky/NAME-TIME.log`` (what failed, and the three runs) and one row for each test
in ``build/log/retry_alone.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.testrun import known_flaky, run_report
from lab.testrun.known_flaky import KnownFlaky, KnownFlakyError
from lab.testrun.run_report import Failure, Flaky, RunReport

MOST = 5
"""Failed tests of one run that are worth a retry."""
TIMES = 3
HISTORY = Path("build/log/retry_alone.jsonl")
LOGS = Path("build/log/flaky")


def refusal(report: RunReport | None) -> str | None:
    """Why nothing of this run is retried; None: each failed test is."""
    if report is None:
        return "the run ended without a report"
    if report.stopped:
        return f"the run did not run all of its tests: {report.stopped}"
    if not report.failures:
        return "the run failed without a failed test"
    strict = [failure for failure in report.failures if not failure.excusable]
    if strict:
        return f"{strict[0].test} failed in {strict[0].phase}, which passing alone does not excuse"
    if len(report.failed) > MOST:
        return f"{len(report.failed)} tests failed, more than {MOST}"
    return None


def passed_once(report: RunReport | None, status: int) -> bool:
    """Whether a run of one test, with pytest's exit status, passed; a skipped test did not."""
    if report is None or status != 0:
        return False
    return report.passed == 1 and not report.skipped and not report.failures


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0: all that failed are flaky for the first time; 1: the tier has failed."""
    parser = argparse.ArgumentParser(prog="python -m lab.testrun.retry_alone")
    parser.add_argument("report", type=Path, help=f"what {run_report.ENV} named in the first run")
    path: Path = parser.parse_args(argv).report
    report = RunReport.read(path)
    why = refusal(report)
    if report is None or why is not None:
        _say(f"no retry: {why}")
        return 1
    try:
        known = known_flaky.load()
    except KnownFlakyError as error:
        _say(f"no retry: {error}")
        return 1
    for test in report.failed:
        first = [failure for failure in report.failures if failure.test == test]
        log = _log_of(test)
        passed = _retry(test, first, log)
        row = known_flaky.find(known, test) if passed else None
        _remember(test, log, flaky=passed and row is None, returned=row is not None)
        if not passed:
            return 1
        report = judge(report, Flaky(test, str(log)), row)
        report.write(path)
        print(verdict(Flaky(test, str(log)), row), flush=True)
    return 1 if report.returned else 0


def judge(report: RunReport, test: Flaky, row: KnownFlaky | None) -> RunReport:
    """The report after ``test`` passed each time alone; ``row`` of the list is about it, if any.

    A test that returned stays failed.
    """
    if row is not None:
        return replace(report, returned=[*report.returned, test])
    left = [failure for failure in report.failures if failure.test != test.test]
    return replace(report, failures=left, flaky=[*report.flaky, test])


def verdict(test: Flaky, row: KnownFlaky | None) -> str:
    """For people: what a failure that passing alone follows means, and what to do."""
    if row is None:
        return (
            f"FLAKY {test.test} ({test.log})\n"
            f"[run] find the cause, mend it, and add a row to {known_flaky.FILE}"
        )
    return (
        f"RETURNED {test.test} ({test.log})\n"
        f"[run] failed: {row.id} was flaky before ({row.first_seen}), and {known_flaky.FILE} says "
        f"that its cause was mended. Cause: {row.cause} Mended: {row.mended}"
    )


def _retry(test: str, first: Sequence[Failure], log: Path) -> bool:
    """Whether the test passes `TIMES` times alone; ends at its first failure."""
    passed = False
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        for failure in first:
            file.write(f"==== {test} failed in {failure.phase} ====\n{failure.text}\n")
        for number in range(1, TIMES + 1):
            file.write(f"==== alone, {number} of {TIMES} ====\n")
            file.flush()
            began = time.monotonic()
            passed = _run(test, file.fileno(), log.with_suffix(".json"))
            took = time.monotonic() - began
            outcome = "passed" if passed else "FAILED"
            _say(f"{test} alone, {number} of {TIMES}: {outcome} ({took:.0f} s)")
            if not passed:
                break
    if not passed:
        sys.stdout.write(log.read_text(errors="replace"))
        _say(f"the log is {log}")
    return passed


def _run(test: str, output: int, report: Path) -> bool:
    """Run one test in a pytest of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", test],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=os.environ | {run_report.ENV: str(report)},
    )
    found = RunReport.read(report)
    report.unlink(missing_ok=True)
    return passed_once(found, done.returncode)


def _log_of(test: str) -> Path:
    name = re.sub(r"[^\w.-]+", "_", test.removeprefix("tests/"))[:120]
    return LOGS / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}.log"


def _remember(test: str, log: Path, *, flaky: bool, returned: bool) -> None:
    row = {
        "at": int(time.time()), "test": test, "flaky": flaky, "returned": returned, "log": str(log),
    }  # fmt: skip
    HISTORY.parent.mkdir(parents=True, exist_ok=True)
    with HISTORY.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _say(text: str) -> None:
    print(f"[run] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
