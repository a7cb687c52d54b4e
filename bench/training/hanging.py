"""A loop whose ranks hang where it is said, or work unevenly: ``hanging.py DIRECTORY STEPS``.

``HANGS`` in the environment: ``rank:step:kind`` by commas, each done once. Kinds: ``stop`` (SIGSTOP
to itself), ``held`` (a call in C that holds the interpreter's lock), ``silent`` (Python that never
comes to an end). ``UNEVEN``: a factor; steps take as long as healthy ones may, times that.

Each process appends ``time rank generation step`` to ``commits.PID`` for each step that it has
applied (nanoseconds, monotonic), and the time at which it hangs to ``hang.RANK-STEP-KIND``. At the
end each rank writes the SHA-256 of its parameters to ``end.RANK``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train
from fabric_train.rank.job import Job

STEP_S = 0.02
EVALUATE_S, CHECKPOINT_S, ALONE_S, HELD_S, HELD_IN_PAUSE_S = 12.0, 20.0, 40.0, 2.0, 8.0
"""Of uneven work: of all ranks, rank 0, rank 1 in a pause; a held lock, and one in a pause."""


def hold(seconds: float) -> None:
    """Hold the interpreter's lock, as a library in C does that never gives it back."""
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))


def hang(kind: str) -> None:
    """Go on never."""
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        if kind == "held":
            hold(3600.0)
        time.sleep(0.05)


def work_unevenly(job: Job, step: int, factor: float) -> None:
    """One step of a healthy rank whose steps differ, evaluate and write."""
    shared = random.Random(step)
    own = random.Random(f"{step} {job.rank}")
    time.sleep(factor * (shared.uniform(0.02, 1.0) + own.uniform(0.0, 0.5)))
    at = step % 25
    if at == 4:
        time.sleep(factor * (EVALUATE_S + own.uniform(0.0, 2.0)))
    if at == 9 and job.rank == 0:
        time.sleep(factor * CHECKPOINT_S)
    if at == 14 and job.rank == job.world - 1:
        hold(factor * HELD_S)
    if at == 19 and job.rank == 1:
        with job.pause("evaluation"):
            hold(factor * HELD_IN_PAUSE_S)
            time.sleep(factor * ALONE_S)


def main() -> None:
    """Train."""
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    hangs = [one.split(":") for one in os.environ.get("HANGS", "").split(",") if one]
    factor = float(os.environ.get("UNEVEN", "0"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    job = fabric_train.join()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer)
    commits = (out / f"commits.{os.getpid()}").open("a", buffering=1)
    for step in job.steps(steps):
        with job.attempt():
            if not job.rehearsing:
                time.sleep(STEP_S)
                for rank, at, kind in hangs:
                    mark = out / f"hang.{rank}-{at}-{kind}"
                    if (job.rank, step) == (int(rank), int(at)) and not mark.exists():
                        mark.write_text(str(time.monotonic_ns()))
                        hang(kind)
                if factor:
                    work_unevenly(job, step, factor)
            draws = torch.Generator().manual_seed(1000 * step + job.rank)
            loss = model(torch.randn(8, 64, generator=draws)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if job.applied:
            commits.write(f"{time.monotonic_ns()} {job.rank} {job.generation} {step + 1}\n")
    parameters = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
    (out / f"end.{job.rank}").write_text(hashlib.sha256(parameters).hexdigest())


if __name__ == "__main__":
    main()
