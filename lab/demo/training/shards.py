"""The end of the second act: a rank is killed whose shards no other rank has (FSDP2 over four).

Two jobs of this machine alone, over gloo: one is disturbed, the other one has the same seed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.demo.run import DemoError
from lab.demo.training.sources import Progress
from lab.demo.training.story import RANKS, Strike
from lab.node import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOP = Path(__file__).with_name("loop.py")
STEPS, BEFORE, PACE_S = 40, 10, 0.1
"""Steps of the job and before the kill, and seconds that each waits until all has been seen."""
START_S = STRIKE_S = END_S = 120.0
VICTIM = 2


@dataclass
class Shards:
    """What came of it. ``weights``: SHA-256 of shards and optimizer state, by rank."""

    strike: Strike = field(
        default_factory=lambda: Strike("rank with shards killed", f"rank {VICTIM} of 4", "rank")
    )
    weights: dict[int, str] = field(default_factory=dict)
    undisturbed: dict[int, str] = field(default_factory=dict)
    wrong_steps: int = 0

    def failures(self) -> list[str]:
        """What did not come out as promised; empty: all did, or it was not played."""
        wrong = []
        if self.strike.start_ns and self.strike.committed_ns is None:
            wrong.append(f"{self.strike.title}: not all ranks went on")
        if self.strike.steps_lost or self.wrong_steps:
            wrong.append(
                f"{self.strike.title}: {self.strike.steps_lost} steps are lost, {self.wrong_steps} "
                "were applied twice or never"
            )
        if self.weights != self.undisturbed or not all(self.weights.values()):
            wrong.append(f"the shards are {self.weights}, and undisturbed {self.undisturbed}")
        return wrong


def play(directory: Path, tell: Callable[[str], None], show: Callable[[], None]) -> Shards:
    """Run both jobs; kill a rank of the first one.

    Raises:
        DemoError: a job did not start, or did not end.
    """
    found = Shards()
    calm = directory / "undisturbed"
    calm.mkdir(parents=True)
    (calm / "fast").touch()
    progress = Progress(directory)

    def until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            progress.poll()
            show()
            ended = next((one for one in (job, beside) if one.poll()), None)
            if ended is not None or time.monotonic() > deadline:
                log = (directory / "log").read_text() + (calm / "log").read_text()
                raise DemoError(f"shards: no {what} within {timeout_s:g} s\n{log[-3000:]}")
            time.sleep(0.05)

    with ExitStack() as stack:
        tell("starting a job of 4 ranks whose parameters are in shards, each on one rank alone")
        job = stack.enter_context(_job(directory, spares=1))
        beside = stack.enter_context(_job(calm, spares=0))
        until(
            lambda: len(progress.newest) == RANKS and progress.newest[VICTIM].step >= BEFORE,
            START_S, f"step {BEFORE} of all ranks",
        )  # fmt: skip
        _strike(found.strike, progress, tell, until)
        (directory / "fast").touch()
        until(lambda: job.poll() == 0 and beside.poll() == 0, END_S, "end of both jobs")
    progress.poll()
    found.wrong_steps = progress.doubled_or_missing(RANKS)
    for rank in range(RANKS):
        found.weights[rank] = (directory / f"weights.{rank}").read_text()
        found.undisturbed[rank] = (calm / f"weights.{rank}").read_text()
    return found


def _strike(
    strike: Strike,
    progress: Progress,
    tell: Callable[[str], None],
    until: Callable[[Callable[[], bool], float, str], None],
) -> None:
    generation = progress.newest[VICTIM].generation + 1
    strike.start_ns, strike.generation = time.monotonic_ns(), generation
    os.kill(progress.newest[VICTIM].pid, signal.SIGKILL)
    tell(f"{strike.title}: {strike.target}")

    def committed() -> bool:
        strike.committed_ns = progress.all_past(strike.start_ns, generation, RANKS)
        return strike.committed_ns is not None

    until(committed, STRIKE_S, "step of all ranks after the kill")
    strike.end_ns = time.monotonic_ns()
    before = max(row.step for row in progress.steps if row.generation < generation)
    after = min(row.step for row in progress.steps if row.generation >= generation)
    strike.steps_lost = max(0, before + 1 - after)
    strike.moved = f"rank {VICTIM} → the spare"
    strike.longest_gap_ms = progress.longest_gap_ms(strike.start_ns, strike.end_ns)
    tell(f"all ranks went on after {strike.since_start_ms(strike.committed_ns):.0f} ms")


@contextmanager
def _job(directory: Path, *, spares: int) -> Iterator[subprocess.Popen[Any]]:
    command = [
        sys.executable, "-m", "fabric_train.run", "--standalone", "--nproc-per-node", str(RANKS),
        "--spares", str(spares), "--backend", "gloo", str(LOOP), str(directory), str(STEPS),
        str(RANKS),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "PACE_S": str(PACE_S),
    }  # fmt: skip
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """End a job that leads a process group, also one of the lowest priority."""
    if process.poll() is None:
        # At its own priority a busy machine would not let it run to its end.
        os.setpriority(os.PRIO_PGRP, process.pid, 0)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
