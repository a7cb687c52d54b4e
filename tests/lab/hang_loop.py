"""The training script of test_hang.py: all ranks evaluate once, and one rank hangs once.

Each process writes its pid to ``rank.N`` in every step; the parameters' hash goes to ``end.N``.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train

OUT = Path(sys.argv[1])
STEPS, EVALUATE, ALONE, HANG = 120, 20, 30, 40
EVALUATE_S, ALONE_S, STEP_S = 8.0, 2.0, 0.02
HANGS = 2


def work(step, rank):
    """What takes long beside the collectives."""
    for name, value in ((f"rank.{rank}", os.getpid()), ("step", step)):
        new = OUT / f"{name}.{rank}.new"
        new.write_text(str(value))
        new.rename(OUT / name)  # a reader finds the one before or this one, whole
    if (OUT / "undisturbed").exists():
        return
    time.sleep(EVALUATE_S if step == EVALUATE else STEP_S)
    if rank == 0 and step == ALONE:
        time.sleep(ALONE_S)
    if rank == HANGS and step == HANG and not (OUT / "hung").exists():
        (OUT / "hung").touch()
        while True:
            pass  # as a loader that spins


torch.manual_seed(0)
job = fabric_train.join()
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
job.protect(model=model, optimizer=optimizer)
for step in job.steps(STEPS):
    with job.attempt():
        if not job.rehearsing:
            work(step, job.rank)
        draws = torch.Generator().manual_seed(1000 * step + job.rank)
        loss = model(torch.randn(8, 64, generator=draws)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
parameters = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
(OUT / f"end.{job.rank}").write_text(hashlib.sha256(parameters).hexdigest())
