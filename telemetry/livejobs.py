"""The stats pages of the jobs that run now, as JSON: what ``fabricctl top`` asks the daemon for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from telemetry.statsdir import ProcessPage, StatsDirectory

MAX_PROCESSES = 256


def live_jobs(
    directory: StatsDirectory, now_ns: int | None = None, *, budget_s: float | None = None
) -> dict[str, Any]:
    """Every living process's rails and comm groups.

    Args:
        directory: ``$RUN/stats``, kept from one call to the next.
        now_ns: CLOCK_MONOTONIC; None: as the clock says.
        budget_s: time for it; None: as long as it takes.

    Returns:
        ``time_ns``; ``processes``, `MAX_PROCESSES` at most; ``left_out``, how many more; ``scan``,
        the `telemetry.statsdir.ScanReport`: unless its ``partial`` is empty there may be others.
    """
    now = time.monotonic_ns() if now_ns is None else now_ns
    found = [page for page in directory.scan(now, budget_s) if page.alive]
    shown = _fair(found)[:MAX_PROCESSES]
    return {
        "time_ns": now,
        "processes": [_process(process) for process in shown],
        "left_out": len(found) - len(shown),
        "scan": asdict(directory.report),
    }


def _fair(found: Iterable[ProcessPage]) -> list[ProcessPage]:
    """Each user's newest process, then each one's second: nobody crowds out the others."""
    owners: dict[int, list[ProcessPage]] = {}
    for process in sorted(found, key=lambda each: each.page.start_ns, reverse=True):
        owners.setdefault(process.uid, []).append(process)
    rows = zip_longest(*owners.values())
    return [process for row in rows for process in row if process is not None]


def _process(process: ProcessPage) -> dict[str, Any]:
    page = process.page
    return {
        "job": page.job,
        "pid": page.pid,
        "uid": process.uid,
        "subdirectory": process.subdirectory,
        "start_ns": page.start_ns,
        "following": page.steer_present,
        "errors": page.errors,
        "rails": [asdict(rail) for rail in page.rails],
        "groups": [asdict(group) | {"direction": group.direction.name.lower()}
                   for group in page.groups],
    }  # fmt: skip
