"""Torchft and torchrun in the same run, with the model, the kills and the step of our own job.

Torchft gets a virtual environment of its own under ``build``; torch itself is that of the project,
so all three train with the same one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.migrate import takeovers
from bench.migrate.events import Events, Resumed, resumed
from bench.migrate.jobs import LOOPS, RANKS, JobError, run_job, standalone, torchrun
from bench.migrate.takeovers import Fault
from bench.report import Row
from bench.training.trace import UNLIMITED
from lab.supply import locked
from lab.supply.own_venv import OwnVenvError, own_python

EVERY = 25
"""Steps from one checkpoint of torchrun's job to the next."""
_HEARTBEAT_MS = 5000  # torchft's default
_TUNED_MS = 500


@dataclass(frozen=True)
class Outcome:
    """What became of the kills of one job. Times in ms, from each SIGKILL."""

    survivors: list[float]
    everybody: list[float]
    lost_steps: list[int]
    skipped: int
    step_ms: float


def _release() -> str:
    (found,) = (one for one in locked.read("torchft") if one.name.startswith("torchft"))
    return f"{found.name}=={found.version}"


def torchft_python() -> Path:
    """The interpreter that has torchft; makes its virtual environment when there is none."""
    try:
        return own_python("torchft")
    except OwnVenvError as error:
        raise JobError(str(error)) from None


def torchft(steps: int, heartbeat_ms: int) -> Callable[[Path], list[str | Path]]:
    """The command of a job of four replica groups."""
    python = torchft_python()

    def argv(directory: Path) -> list[str | Path]:
        loop = LOOPS / "replica_groups.py"
        return [python, loop, directory, str(steps), str(heartbeat_ms)]

    return argv


def peers(*, quick: bool) -> list[Row]:
    """SIGKILL to a rank of each kind of job."""
    count = 2 if quick else 6
    ours = _outcome(standalone(100_000, spares=1), count, spares=1)
    usual = _outcome(torchft(100_000, _HEARTBEAT_MS), count)
    tuned = _outcome(torchft(100_000, _TUNED_MS), count)
    restart = _outcome(
        torchrun(100_000, every=EVERY, restarts=count), count,
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )  # fmt: skip
    mine = median(ours.everybody)
    about = f"ours {mine:.0f} ms, a step of {ours.step_ms:.0f} ms; {count} kills each"
    return [
        Row(
            "faster than torchft: SIGKILL → next commit", 10, median(usual.survivors) / mine, "x",
            better="higher", note=f"{_release()}, its defaults; {about}",
        ),
        Row(
            "torchft: SIGKILL → next commit of the survivors, median", None,
            median(usual.survivors), "ms", note=_note(usual),
            samples={"survivors": usual.survivors, "everybody": usual.everybody},
        ),
        Row(
            f"torchft with heartbeat_timeout_ms {_TUNED_MS} instead of {_HEARTBEAT_MS}", None,
            median(tuned.survivors), "ms", note=_note(tuned),
            samples={"survivors": tuned.survivors, "everybody": tuned.everybody},
        ),
        Row(
            "faster than torchrun's restart: SIGKILL → next commit", 20,
            median(restart.everybody) / mine, "x", better="higher", note=about,
        ),
        Row(
            "torchrun: SIGKILL → next commit on all ranks, median", None,
            median(restart.everybody), "ms",
            note=f"steps lost, median: {median(restart.lost_steps):g}; a checkpoint every {EVERY} "
            f"steps of {restart.step_ms:.0f} ms",
            samples={"everybody": restart.everybody, "steps lost": restart.lost_steps},
        ),
    ]  # fmt: skip


def _note(got: Outcome) -> str:
    return (
        f"batches skipped: {got.skipped}; a new process is started 10 s after each kill and is "
        f"there after {median(got.everybody) / 1e3:.0f} s"
    )


def _outcome(
    command: Callable[[Path], list[str | Path]],
    count: int,
    *,
    spares: int = 0,
    env: dict[str, str] | None = None,
) -> Outcome:
    randoms = random.Random(29)
    faults: list[Fault] = []
    with run_job(command, {"OMP_NUM_THREADS": "1", **(env or {})}) as job:
        job.control.allow(UNLIMITED)
        for _ in range(count):
            if spares:
                job.wait_spares(spares)
            job.wait_running(randoms.randint(5, 5 + EVERY))
            time.sleep(randoms.uniform(0, 0.2))
            ranks = job.ranks()
            generation = max(page.committed for page in job.pages().values())
            faults.append(takeovers.kill(job, ranks[randoms.choice(sorted(ranks))], randoms))
            job.wait_committed(generation)
        events = job.events()
    found = [_after(events, faults, number) for number in range(count)]
    return Outcome(
        [(some.at_ns - fault.at_ns) / 1e6 for fault, (some, _) in zip(faults, found, strict=True)],
        [(all_.at_ns - fault.at_ns) / 1e6 for fault, (_, all_) in zip(faults, found, strict=True)],
        [all_.lost_steps for _, all_ in found],
        _skipped(events),
        _step_ms(events, faults),
    )


def _after(events: Events, faults: list[Fault], number: int) -> tuple[Resumed, Resumed]:
    """What came after a fault: all survivors, and all ranks, have committed again."""
    until = faults[number + 1].at_ns if number + 1 < len(faults) else None
    seen = Events(commits=[one for one in events.commits if until is None or one.at_ns < until])
    some = resumed(seen, faults[number].at_ns, RANKS - 1)
    every = resumed(seen, faults[number].at_ns, RANKS)
    assert some is not None
    assert every is not None
    return some, every


def _skipped(events: Events) -> int:
    """Attempts after which a process tried the same step again, with another batch."""
    return len(events.draws) - len({(one.pid, one.step) for one in events.draws})


def _step_ms(events: Events, faults: list[Fault]) -> float:
    """Median time of an undisturbed step, before the first fault."""
    times = sorted(
        one.at_ns for one in events.commits if one.rank == 0 and one.at_ns < faults[0].at_ns
    )
    return median(b - a for a, b in pairwise(times)) / 1e6
