"""``RunReport``: what one run of pytest found, as a JSON file that the test runner reads.

``tests/conftest.py`` writes it to the path in ``FABRIC_REPORT``; `lab.testrun.retry_alone` and
`lab.testrun.totals` read it. A passed test that failed in its teardown counts as failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lab.observe.log_scan import has_sanitizer_report

ENV = "FABRIC_REPORT"
_PHASES = ("", "passed", "skipped", "failed", "error")
"""Categories of pytest's reports of one phase each; "": a set-up or teardown that went well."""
_GROUP = re.compile(r"@\w+$")
"""xdist appends "@group" to the name of a test that has one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed phase of one test."""

    test: str
    """Node id, as pytest takes it on its command line."""
    phase: str
    """setup, call or teardown; collect: a file; ???: the test's process died."""
    text: str
    """What pytest prints for it, captured output included."""

    @property
    def excusable(self) -> bool:
        """Whether passing alone may excuse it.

        A sanitizer's report never is excused, nor is a failed teardown, which holds what the logs
        of a lab say and what a test left behind; nor a file that cannot be collected.
        """
        return self.phase in {"setup", "call"} and not has_sanitizer_report(self.text)


@dataclass(frozen=True, slots=True)
class Flaky:
    """A test that failed beside others and passed each time alone."""

    test: str
    log: str
    """Path of the kept log, from the root of the checkout."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of pytest."""

    passed: int = 0
    skipped: int = 0
    failures: Sequence[Failure] = ()
    flaky: Sequence[Flaky] = ()
    """Set by `lab.testrun.retry_alone`; these count neither as passed nor as failed above."""
    returned: Sequence[Flaky] = ()
    """Set as ``flaky``: tests that were flaky before (`lab.testrun.known_flaky`). They failed, and
    count as failed above."""
    stopped: str = ""
    """Why it ended before all of its tests had run (``-x``, ``--maxfail``); empty: it did not."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Node id → how long the test took with its set-up and its teardown; a fixture that several
    tests share counts for the one that made it, and for the one that was the last to use it."""

    @property
    def failed(self) -> list[str]:
        """Node ids of all that failed, each once, in their order."""
        return list(dict.fromkeys(failure.test for failure in self.failures))

    def write(self, path: Path) -> None:
        """Write it to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> RunReport | None:
        """The report of a run; None when the run ended before it could write one."""
        try:
            row: dict[str, Any] = json.loads(path.read_text())
            failures = [Failure(**failure) for failure in row["failures"]]
            flaky = [Flaky(**test) for test in row["flaky"]]
            returned = [Flaky(**test) for test in row["returned"]]
            counts = int(row["passed"]), int(row["skipped"])
            seconds = {str(test): float(took) for test, took in row["seconds"].items()}
            return cls(*counts, failures, flaky, returned, str(row["stopped"]), seconds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


class Outcome(Protocol):
    """What is read of pytest's TestReport and CollectReport."""

    nodeid: str
    when: str
    duration: float
    """Seconds."""
    longreprtext: str
    sections: Sequence[tuple[str, str]]


def from_stats(stats: Mapping[str, Sequence[Outcome]], stopped: str = "") -> RunReport:
    """The report of a run.

    Args:
        stats: ``TerminalReporter.stats``.
        stopped: as `RunReport.stopped`.
    """

    def name(report: Outcome) -> str:
        return _GROUP.sub("", report.nodeid)

    failures = [
        Failure(name(report), report.when, _text(report))
        for category in ("failed", "error")
        for report in stats.get(category, [])
    ]
    bad = {failure.test for failure in failures}
    passed = {name(report) for report in stats.get("passed", [])}
    skipped = {name(report) for report in stats.get("skipped", [])}
    seconds: dict[str, float] = {}
    for report in (report for category in _PHASES for report in stats.get(category, [])):
        test = name(report)
        seconds[test] = round(seconds.get(test, 0.0) + getattr(report, "duration", 0.0), 3)
    return RunReport(
        len(passed - bad), len(skipped - bad), failures, stopped=stopped, seconds=seconds
    )


def _text(report: Outcome) -> str:
    sections = [f"---- {title} ----\n{text}" for title, text in report.sections]
    return "\n".join([report.longreprtext, *sections])
