"""Ranks of transformers' Trainer, Lightning and Accelerate killed at random moments.

The loops are those of the tests; the first two name nothing of ours (``--transparent``). What has
to come out is what the same script gives undisturbed, the first two under torchrun: SHA-256 of
weights and optimizer state, the schedule, all logged values.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.migrate.jobs import REPO, Job, JobError, cpu_ticks, run_job
from bench.report import Row
from lab.supply.own_venv import own_python

RANKS = 2
_LOOPS = REPO / "tests" / "lab"
_RECOVERY_S, _END_S, _IDLE_S = 120.0, 900.0, 1.0


@dataclass(frozen=True)
class Framework:
    """``transparent``: the script is as it is without fabric_train. ``steps``: for each kill."""

    name: str
    script: str
    transparent: bool
    steps: int


FRAMEWORKS = (
    Framework("transformers' Trainer", "trainer_loop", True, 120),
    Framework("Lightning", "lightning_loop", True, 400),
    Framework("Accelerate", "accelerate_loop", False, 600),
)


@dataclass(frozen=True)
class Played:
    """``pauses_ms``: from each SIGKILL to the next commit of the job. ``ends``: by rank."""

    pauses_ms: list[float]
    ends: list[str]


def frameworks(*, quick: bool) -> list[Row]:
    """SIGKILL, uniformly in time, to either rank."""
    return [row for one in FRAMEWORKS for row in _measure(one, 3 if quick else 10)]


def _measure(framework: Framework, count: int) -> list[Row]:
    steps = count * framework.steps
    calm = _undisturbed(framework, steps)
    with run_job(_protected(framework, steps, spares=1)) as job:
        got = _play(job, count, random.Random(43))
    how = "no line changed" if framework.transparent else "a loop of one's own"
    same = sum(ours == theirs for ours, theirs in zip(got.ends, calm, strict=True))
    return [
        Row(
            f"{framework.name}, {how}: {count} kills at random moments, ranks with the end of an "
            "undisturbed job", RANKS, same, "", better="equal", note=f"{steps} steps, 2 ranks",
        ),
        Row(
            f"{framework.name}: SIGKILL → next commit, median", None, median(got.pauses_ms), "ms",
            note=f"slowest {max(got.pauses_ms):.0f}; of it the spare runs the script up to the "
            "loop and rehearses twice", samples={"pauses": got.pauses_ms},
        ),
    ]  # fmt: skip


def _protected(
    framework: Framework, steps: int, *, spares: int
) -> Callable[[Path], Sequence[str | Path]]:
    def argv(directory: Path) -> list[str | Path]:
        how = ["--transparent"] if framework.transparent else []
        return [
            own_python("frameworks"), "-m", "fabric_train.run", "--standalone", *how,
            "--nproc-per-node", str(RANKS), "--spares", str(spares),
            "--records", directory / "records.json",
            _LOOPS / f"{framework.script}.py", str(steps), directory,
        ]  # fmt: skip

    return argv


def _undisturbed(framework: Framework, steps: int) -> list[str]:
    def by_torchrun(directory: Path) -> list[str | Path]:
        return [
            own_python("frameworks"), "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(RANKS), _LOOPS / f"{framework.script}.py", str(steps),
            directory,
        ]  # fmt: skip

    command = by_torchrun if framework.transparent else _protected(framework, steps, spares=0)
    with run_job(command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) as job:
        job.wait_end(_END_S)
        return _ends(job.directory)


def _play(job: Job, count: int, randoms: random.Random) -> Played:
    """Kill ranks one after another; a kill waits for a warm spare, and for new steps."""
    at: list[float] = []
    for _ in range(count):
        done = max((step for step, _ in _ranks(job).values()), default=0)
        job.wait_until(functools.partial(_all_beyond, job, done), "new steps", _RECOVERY_S)
        _wait_spare(job)
        time.sleep(randoms.uniform(0, 0.5))
        ranks = _ranks(job)
        at.append(time.monotonic())
        os.kill(ranks[randoms.choice(sorted(ranks))][1], signal.SIGKILL)
    job.wait_end(_END_S)
    records = json.loads((job.directory / "records.json").read_text())
    resumed = [one["committed_at"] for one in records if one["committed_at"] is not None]
    after = [min((one for one in resumed if one > kill), default=None) for kill in at]
    if len(records) != count or None in after:
        raise JobError(f"{count} kills, {len(records)} recoveries\n{job.log()[-2000:]}")
    pauses = [1e3 * (then - kill) for then, kill in zip(after, at, strict=True) if then]
    return Played(pauses, _ends(job.directory))


def _ends(directory: Path) -> list[str]:
    return [(directory / f"weights.{rank}").read_text() for rank in range(RANKS)]


def _pids(job: Job) -> set[int]:
    """Processes that run the script of the job."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != job.launcher.pid:
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if os.fsencode(job.directory) in words:
                found.add(int(entry.name))
    return found


def _ranks(job: Job) -> dict[int, tuple[int, int]]:
    """By rank: the step that its process has begun last, and the pid."""
    alive, found = _pids(job), dict[int, tuple[int, int]]()
    for path in job.directory.glob("attempts.*"):
        lines = path.read_text().split("\n")[:-1]
        if lines and int(path.suffix[1:]) in alive:
            rank, step = map(int, lines[-1].split(":"))
            found[rank] = max(found.get(rank, (0, 0)), (step, int(path.suffix[1:])))
    return found


def _all_beyond(job: Job, step: int) -> bool:
    ranks = _ranks(job)
    time.sleep(0.1)  # a look at all processes, beside what is measured
    return len(ranks) == RANKS and all(at > step + 2 for at, _ in ranks.values())


def _wait_spare(job: Job) -> None:
    """Until a process that is no rank has been idle for a second: its imports are over."""

    def warm() -> bool:
        spares = _pids(job) - {pid for _, pid in _ranks(job).values()}
        before = {pid: cpu_ticks(pid) for pid in spares}
        time.sleep(_IDLE_S)
        return any(ticks is not None and cpu_ticks(pid) == ticks for pid, ticks in before.items())

    job.wait_until(warm, "a warm spare", _RECOVERY_S)
