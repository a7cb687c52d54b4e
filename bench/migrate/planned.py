"""Ranks moved by plan: a host is drained while the job over the lab's hosts runs.

The pause is what a move adds to the time between two commits of all ranks. The spare of a move is
the host that was drained before.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping
from statistics import median

from bench.migrate import hosts
from bench.migrate.events import (
    Events,
    changes_over,
    merge_steps,
    wrong_samples,
    wrong_states,
)
from bench.migrate.jobs import RANKS, REPO
from bench.report import Row
from bench.training.samples import samples_of
from bench.training.trace import UNLIMITED

STEPS_PER_MOVE = 60
_BETWEEN = 10  # steps before a move, and after it
_MOVE_S = 60.0


def planned(*, quick: bool) -> list[Row]:
    """Drain one host after another, and compare with a job that nobody disturbs."""
    count = 3 if quick else 10
    steps = count * STEPS_PER_MOVE + 60
    # A hash takes CPU that the first steps after a move need, and is none of the move.
    with hosts.start(steps=steps, spares=1, env={"HASH_LATER": "2"}) as job:
        assert isinstance(job, hosts.LabJob)
        _drain_in_turn(job, count)
        job.control.allow(UNLIMITED)
        job.wait_end(600)
        events = job.events()
    with hosts.start(steps=steps, spares=0, hashed=merge_steps([events])) as job:
        job.control.allow(UNLIMITED)
        job.wait_end(1200)
        reference = job.events()
    return rows(events, reference, count, steps)


def rows(events: Events, reference: Events, count: int, steps: int) -> list[Row]:
    """The rows of ``count`` moves in a job of ``steps`` steps. Pure."""
    found, step_ms = changes_over(events, RANKS)
    pauses = [one.gap_ms - one.steps * step_ms for one in found] or [float("inf")]
    expected = {
        (rank, step): samples_of(step, rank, RANKS)
        for rank in range(RANKS)
        for step in range(steps)
    }
    attempts = {(one.rank, one.step) for one in events.draws}
    wrong = wrong_states(events, reference)
    what = "planned move: time added between two commits"
    return [
        Row(
            f"{what}, median", step_ms + 100, median(pauses), "ms",
            note=f"{hosts.WHERE}; asked: a step of {step_ms:.0f} ms and 100 ms",
            samples={"pauses": pauses},
        ),
        Row(f"{what}, the latest of {count}", step_ms + 100, max(pauses), "ms"),
        Row("planned moves", count, len(found), "", better="equal"),
        Row(
            "planned moves: steps run again", 0, len(events.draws) - len(attempts), "",
            better="equal", note=f"batches dropped or doubled: {wrong_samples(events, expected)}",
        ),
        Row(
            "planned moves: states that differ from those of an undisturbed job", 0, len(wrong), "",
            better="equal", note=f"of {len(events.states)}",
        ),
    ]  # fmt: skip


def _drain_in_turn(job: hosts.LabJob, count: int) -> None:
    randoms = random.Random(31)
    last = 0
    for _ in range(count):
        last += _BETWEEN
        job.control.allow(UNLIMITED)
        _wait_step(job, last)
        victim = randoms.choice(
            [rank for rank, pid in _holders(job).items() if _may_move(job, pid)]
        )
        node = job.node_of(_holders(job)[victim])
        generation = max(page.committed for page in job.pages().values())
        operate(job, "drain", node.name)
        job.wait_committed(generation, _MOVE_S)
        last = _step(job) + _BETWEEN
        _wait_step(job, last)
        last = _step(job) + 3
        job.control.allow(last)
        _wait_step(job, last)
        operate(job, "undrain", node.name)


def _holders(job: hosts.LabJob) -> Mapping[int, int]:
    """Pid of the process that holds each rank: of those that had it, the one that is furthest."""
    pages = {pid: page for pid, page in job.pages().items() if page.step}
    return {page.rank: pid for pid, page in sorted(pages.items(), key=lambda one: one[1].step)}


def _may_move(job: hosts.LabJob, pid: int) -> bool:
    return pid not in set(job.training.hosts[0].pids())  # its fabric-run is the one that is watched


def _step(job: hosts.LabJob) -> int:
    """Steps that all ranks have applied."""
    pages = job.pages()
    steps = [pages[pid].step for pid in _holders(job).values()]
    return min(steps) if len(steps) == RANKS else 0


def _wait_step(job: hosts.LabJob, step: int) -> None:
    job.wait_until(lambda: _step(job) >= step, f"{RANKS} ranks at step {step}", 180)


def operate(job: hosts.LabJob, *words: str) -> None:
    """Run ``fabric-compute WORDS``. Raises ``CalledProcessError``."""
    config = str(job.management.dir / "c0.toml")
    subprocess.run(
        [sys.executable, "-m", "compute", *words, "--config", config],
        env={**os.environ, "PYTHONPATH": str(REPO)}, check=True, capture_output=True,
    )  # fmt: skip
