"""The stats pages of the jobs that run now, as JSON: what ``fabricctl top`` asks the daemon for."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from telemetry.statsdir import ProcessPage, StatsDirectory

MAX_PROCESSES = 256


def live_jobs(directory: Path, now_ns: int | None = None) -> dict[str, Any]:
    """Every living process's rails and comm groups.

    Args:
        directory: ``$RUN/stats``.
        now_ns: CLOCK_MONOTONIC; None: as the clock says.

    Returns:
        ``time_ns``; ``processes``, the `MAX_PROCESSES` newest at most; ``left_out``, how many more.
    """
    now = time.monotonic_ns() if now_ns is None else now_ns
    found = [page for page in StatsDirectory(directory, groups=True).scan(now) if page.alive]
    found.sort(key=lambda process: process.page.start_ns, reverse=True)
    shown = found[:MAX_PROCESSES]
    return {
        "time_ns": now,
        "processes": [_process(process) for process in shown],
        "left_out": len(found) - len(shown),
    }


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
