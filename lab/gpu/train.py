"""The training script of :mod:`lab.gpu.migrate`: a small net on the GPU, every operation exact.

``train.py STEPS DIRECTORY``: each rank writes its pid before a step and its state's SHA-256 at the
end. With ``FABRIC_GPU_DIE=RANK:STEP:MOMENT,…`` a rank kills itself there, once.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

# Each process is a host to NCCL: else it would refuse two on one GPU, or use shared memory.
os.environ["NCCL_HOSTID"] = f"fabric-gpu-{os.getpid()}"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train
from fabric_train.rank.job import Job

WIDTH = 1024
BATCH = 32


def strike(job: Job, step: int, moment: str, directory: Path) -> None:
    """Dies here if it was told to, and has not yet."""
    if job.rehearsing or f"{job.rank}:{step}:{moment}" not in os.environ.get("FABRIC_GPU_DIE", ""):
        return
    try:
        (directory / f"struck.{job.rank}-{step}-{moment}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train."""
    total, directory = int(sys.argv[1]), Path(sys.argv[2])
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    torch.cuda.init()
    torch.manual_seed(0)
    job = fabric_train.join()
    net = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10),
    ).cuda()  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer)
    now = [0]
    net[4].register_forward_hook(lambda *_: strike(job, now[0], "forward", directory))
    net[6].register_full_backward_hook(lambda *_: strike(job, now[0], "backward", directory))
    started = 0.0
    for step in job.steps(total):
        now[0] = step
        started = started or (0.0 if job.rehearsing else time.monotonic())
        with job.attempt():
            random = torch.Generator().manual_seed(1_000_003 * step + job.rank)
            inputs = torch.randn(BATCH, WIDTH, generator=random).cuda()
            targets = torch.randint(0, 10, (BATCH,), generator=random).cuda()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            strike(job, step, "gate", directory)
            optimizer.step()
    took = time.monotonic() - started
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    for parameter in model.parameters():
        for _, value in sorted(optimizer.state[parameter].items()):
            digest.update(value.cpu().numpy().tobytes())
    lines = digest.hexdigest(), f"{took / total * 1000:.3f}"
    (directory / f"weights.{job.rank}").write_text("\n".join(lines))


main()
