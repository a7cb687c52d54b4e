"""Ranks with shards killed at random moments: HSDP, and FSDP2 without replicas.

A spare builds its model when it has its rank (``join(late=True)``), which is part of each figure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from bench.migrate import kills, takeovers
from bench.migrate.jobs import Job, run_job, standalone
from bench.migrate.takeovers import Strike
from bench.report import Row, percentile

_SIZES = re.compile(r"gradients since: (\d+) bytes of host memory for each rank, (\d+) a step")
_QUIET = re.compile(r"p\d+ (?:keep|apply): .*'connected': ([\d.]+).*'state': ([\d.]+)")


@dataclass(frozen=True)
class Case:
    """``mesh``: sizes, as ``bench.training.sharded`` has them. ``count``: kills in full."""

    name: str
    mesh: str
    ranks: int
    count: int
    buddies: int = 1
    strike: Strike = takeovers.kill
    spares: int = 1

    def start(
        self, *, steps: int, spares: int, hashed: Sequence[int] = ()
    ) -> AbstractContextManager[Job]:
        """The job."""
        command = standalone(
            steps, spares=spares, hashed=hashed, ranks=self.ranks, loop="sharded.py"
        )
        environment = {"BENCH_MESH": self.mesh, "BENCH_BUDDIES": str(self.buddies)}
        return run_job(command, environment, ranks=self.ranks)


CASES = (
    Case("HSDP 2 × 2", "2x2", 4, 50),
    Case("HSDP 3 × 2", "3x2", 6, 50),
    Case("FSDP2 over 4, no replicas", "4", 4, 25),
    Case("FSDP2 over 6, no replicas", "6", 6, 25),
    Case(
        "FSDP2 over 4, two buddies, two neighbours at once", "4", 4, 10, 2,
        takeovers.kill_neighbours, 2,
    ),
)  # fmt: skip


def sharded(*, quick: bool) -> list[Row]:
    """SIGKILL, uniformly in time."""
    return [row for case in CASES for row in _measure(case, 5 if quick else case.count)]


def _measure(case: Case, count: int) -> list[Row]:
    name = case.name
    got = kills.measure(case.strike, count, 42, case.start, spares=case.spares)
    pauses = got.pauses_ms()
    same = takeovers.exact(got.found, got.events, got.wrong)
    final = max(step for _, step in got.events.states)
    ends = sum((rank, final) not in got.wrong for rank in range(case.ranks))
    waits = [float(connected) for connected, _ in _QUIET.findall(got.log)]
    what = f"{name}: rank killed at a random moment → next commit on all ranks, late binding"
    rows = [
        Row(
            f"{what}, median", None, median(pauses), "ms", samples=got.by_phase(),
            note=f"{case.ranks} ranks, 52 MB of state, gloo, one machine; a step takes "
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
            f"{name}: ranks with the final state of an undisturbed job", case.ranks, ends, "",
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
