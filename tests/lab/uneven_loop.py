"""The training script of test_slow_rank.py: steps are uneven, and one rank may be slowed.

A rank named in the file ``slow`` needs 15 % more time of its own, from its next step on.
"""

import random
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train

OUT = Path(sys.argv[1])
STEP_S, SLOWER = 0.25, 1.15  # most of a step, also where its few computations wait for a core


def work(step, rank):
    """Time that no other rank waits in, but for who is done before."""
    common = random.Random(step).lognormvariate(0.0, 0.2)
    mine = random.Random(1000 * step + rank).lognormvariate(0.0, 0.03)
    own = STEP_S * common * mine
    if rank == 0 and step % 60 == 59:
        own += 1.0  # as if it wrote a checkpoint
    if random.Random(f"{step}/{rank}").random() < 0.002:
        own += 0.5
    slow = OUT / "slow"
    if slow.exists() and slow.read_text() == str(rank):
        own *= SLOWER
    time.sleep(own)


torch.manual_seed(0)
job = fabric_train.join()
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
job.protect(model=model, optimizer=optimizer)
for step in job.steps(1_000_000):
    with job.attempt():
        if not job.rehearsing:
            work(step, job.rank)
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
