"""Ranks with shards killed at random moments: HSDP, and FSDP2 without replicas.

A spare builds its model when it has its rank (``join(late=True)``), which is part of each figure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from statistics import median

from bench.migrate import kills, takeovers
from bench.migrate.jobs import RANKS, Job, run_job, standalone
from bench.report import Row, percentile

MESHES = {"HSDP 2 × 2": "2x2", "FSDP2 over 4, no replicas": "4"}
_SIZES = re.compile(r"gradients since: (\d+) bytes of host memory for each rank, (\d+) a step")
_QUIET = re.compile(r"p\d+ (?:keep|apply): .*'connected': ([\d.]+).*'state': ([\d.]+)")


def sharded(*, quick: bool) -> list[Row]:
    """SIGKILL, uniformly in time."""
    return [
        row for name, mesh in MESHES.items() for row in _measure(name, mesh, 5 if quick else 50)
    ]


def _start(
    mesh: str, *, steps: int, spares: int, hashed: Sequence[int] = ()
) -> AbstractContextManager[Job]:
    command = standalone(steps, spares=spares, hashed=hashed, loop="sharded.py")
    return run_job(command, {"BENCH_MESH": mesh})


def _measure(name: str, mesh: str, count: int) -> list[Row]:
    got = kills.measure(takeovers.kill, count, 42, functools.partial(_start, mesh))
    pauses = got.pauses_ms()
    same = takeovers.exact(got.found, got.events, got.wrong)
    final = max(step for _, step in got.events.states)
    ends = sum((rank, final) not in got.wrong for rank in range(RANKS))
    waits = [float(connected) for connected, _ in _QUIET.findall(got.log)]
    what = f"{name}: rank killed at a random moment → next commit on all ranks, late binding"
    rows = [
        Row(
            f"{what}, median", None, median(pauses), "ms", samples=got.by_phase(),
            note=f"4 ranks, 52 MB of state, gloo, one machine; a step takes "
            f"{got.play.step_s * 1e3:.0f} ms; of it until the spare has built its model, median "
            f"{median(waits or [0.0]):.0f} ms",
        ),
        Row(f"{what}, p99", None, percentile(pauses, 0.99), "ms"),
        Row(
            f"{name}: steps lost", 0, sum(one.lost_steps for one in got.found), "", better="equal",
            note=f"batches dropped or doubled: {got.dropped + got.doubled}",
        ),
        Row(
            f"{name}: takeovers with the shards and optimizer state of an undisturbed job, all "
            "ranks", count, same, "", better="equal",
        ),
        Row(
            f"{name}: ranks with the final state of an undisturbed job", RANKS, ends, "",
            better="equal", note=f"after {final} steps",
        ),
    ]  # fmt: skip
    if sizes := _SIZES.search(got.log):
        memory, each_step = (int(one) / 1e6 for one in sizes.groups())
        rows.append(
            Row(
                f"{name}: sent to the buddy with each step",
                None,
                each_step,
                "MB",
                note=f"and {memory:.1f} MB of its memory, for each rank",
            )
        )
    return rows
