"""``grouped_loop.py STEPS OUT``: DDP, and groups of a 2 × 2 mesh whose sums are part of the loss.

FAULTS as in ``train_loop.py``: rank:step:moment, of the first generation.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import fabric_train

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


torch.manual_seed(1)
job = fabric_train.join(late=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
pairs = dist.new_group([0, 3]), dist.new_group([1, 2])
pair = pairs[0] if job.rank in (0, 3) else pairs[1]
whole = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
job.protect(model=whole, optimizer=optimizer)
for at in job.steps(STEPS):
    with job.attempt():
        random = torch.Generator().manual_seed(1000 * at + job.rank)
        x = torch.randn(16, 8, generator=random)
        strike("forward")
        seen = x.mean(0)
        dist.all_reduce(seen, group=mesh["rows"].get_group())
        parts = [torch.empty(8) for _ in range(2)]
        dist.all_gather(parts, x.std(0), group=mesh["columns"].get_group())
        strike("groups")
        gate = torch.zeros(8) + x.max()
        dist.all_reduce(gate, op=dist.ReduceOp.MAX, group=pair)
        loss = (whole(x * gate.tanh() - seen / 2) - torch.stack(parts).mean()).pow(2).mean()
        optimizer.zero_grad()
        strike("backward")
        loss.backward()
        optimizer.step()
        strike("optimizer")
digest = hashlib.sha256()
for tensor in whole.state_dict().values():
    digest.update(tensor.numpy().tobytes())
for state in optimizer.state_dict()["state"].values():
    for value in state.values():
        digest.update(value.numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
