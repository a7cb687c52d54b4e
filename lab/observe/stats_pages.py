"""The stats pages of a host at one moment."""

from __future__ import annotations

import time
from pathlib import Path

from telemetry.statsdir import ProcessPage, StatsDirectory

PATIENCE_S = 10.0
REST_S = 0.005


def read(run_dir: Path) -> tuple[StatsDirectory, list[ProcessPage]]:
    """Every page of a run directory, and the directory to ask for their events.

    A new `StatsDirectory` does not list a page that is just being written, which the daemon reads
    at its next scan. So this looks again until each was read.

    Raises:
        TimeoutError: pages were left out for 10 s; the message says why.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        directory = StatsDirectory(run_dir / "stats")
        found = directory.scan(time.monotonic_ns())
        if not directory.report.partial:
            return directory, found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{run_dir / 'stats'}: {directory.report.partial}")
        time.sleep(REST_S)
