"""The last lines of ``./run test``: ``python -m lab.testrun.totals FOLDER SECONDS STATUS``.

The folder holds what the tiers left: ``*.json`` (`lab.testrun.run_report`, one for each run of
pytest), ``*.xml`` (JUnit files of ctest, one program each a test) and ``tiers`` (one line for each
tier: name, seconds, exit status). ``SECONDS`` and ``STATUS`` are those of the whole run. The
slowest tests stand before the totals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from lab.testrun.run_report import Flaky, RunReport

SLOWEST = 20
"""So many tests are named at the end of a run,"""
SLOW_S = 1.0
"""if they take that long."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tests by how they ended; the flaky ones count as passed, too."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: tuple[Flaky, ...] = ()
    returned: tuple[Flaky, ...] = ()
    """Flaky once more: they count as failed, too."""
    seconds: tuple[tuple[float, str], ...] = ()
    """How long each test took, and its tier and name."""

    def __add__(self, other: Counts) -> Counts:
        """The sum."""
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.flaky + other.flaky,
            self.returned + other.returned,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier of the run."""

    name: str
    seconds: int
    status: int


def of_pytest(report: RunReport, name: str) -> Counts:
    """Counts of one run of pytest; ``name`` is that of its tests' tier."""
    flaky = tuple(report.flaky)
    seconds = tuple((took, f"{name} {test}") for test, took in report.seconds.items())
    return Counts(
        report.passed + len(flaky), len(report.failed), report.skipped, flaky,
        returned=tuple(report.returned), seconds=seconds,
    )  # fmt: skip


def of_ctest(junit: str, name: str) -> Counts:
    """Counts of one run of ctest, from its JUnit file; ``name`` is that of the run.

    Raises:
        ET.ParseError: it is no XML.
        ValueError: a time in it is no number.
    """
    cases = list(ET.fromstring(junit).iter("testcase"))
    states = [case.get("status") for case in cases]
    passed, failed = states.count("run"), states.count("fail")
    seconds = tuple((float(case.get("time") or 0), f"{name} {case.get('name')}") for case in cases)
    return Counts(passed, failed, len(states) - passed - failed, seconds=seconds)


def collect(folder: Path) -> tuple[Counts, list[Tier]]:
    """All that the tiers left. A file that is cut short counts as one failure."""
    total = Counts()
    for path in sorted(folder.glob("*.json")):
        report = RunReport.read(path)
        total += Counts(failed=1) if report is None else of_pytest(report, path.stem)
    for path in sorted(folder.glob("*.xml")):
        try:
            total += of_ctest(path.read_text(), path.stem)
        except (ET.ParseError, ValueError):
            total += Counts(failed=1)
    lines = (folder / "tiers").read_text().splitlines() if (folder / "tiers").exists() else []
    rows = [line.split() for line in lines]
    return total, [Tier(name, int(seconds), int(status)) for name, seconds, status in rows]


def render(counts: Counts, tiers: Iterable[Tier], seconds: int, status: int) -> list[str]:
    """The lines: slow tests, each that was flaky, the totals with the tiers' times, the counts.

    A run that failed without a failed test (lint, a build, a collection) counts as one failure.
    """
    failed = max(counts.failed, 1) if status else counts.failed
    plain = f"{counts.passed} passed, {failed} failed, {counts.skipped} skipped"
    times = ", ".join(
        f"{tier.name} {_time(tier.seconds)}{' FAILED' if tier.status else ''}" for tier in tiers
    )
    slow = sorted((test for test in counts.seconds if test[0] >= SLOW_S), reverse=True)[:SLOWEST]
    return [
        *(["[run] the slowest tests:"] if slow else []),
        *(f"{took:8.1f} s  {test}" for took, test in slow),
        *(f"FLAKY {test.test} ({test.log})" for test in counts.flaky),
        *(f"RETURNED {test.test} ({test.log})" for test in counts.returned),
        f"[run] total: {plain}, {len(counts.flaky)} flaky in {_time(seconds)}"
        + (f": {times}" if times else ""),
        plain,
    ]


def _time(seconds: int) -> str:
    return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines."""
    parser = argparse.ArgumentParser(prog="python -m lab.testrun.totals")
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=int, help="wall time of the whole run")
    parser.add_argument("status", type=int, help="exit status of the whole run")
    args = parser.parse_args(argv)
    counts, tiers = collect(args.folder)
    print("\n".join(render(counts, tiers, args.seconds, args.status)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
