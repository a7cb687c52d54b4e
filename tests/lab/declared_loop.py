"""``declared_loop.py STEPS OUT``: plain tensors that differ between ranks, as the loop declares.

2 × 2 ranks; those of a column train the same layer, and each column another one. MESH=4: each rank
has a layer of its own. Gradients of a column are summed by the loop. SEED: that of rank 3's layer.
FAULTS as in ``grouped_loop.py``.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import fabric_train

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
ALONE = os.environ.get("MESH") == "4"
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


job = fabric_train.join(late=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("same", "column"))
column = job.rank if ALONE else mesh["column"].get_local_rank()
torch.manual_seed(int(os.environ.get("SEED", column)) if job.rank == 3 else column)
model = torch.nn.Linear(5, 3 if ALONE else 3 + column)  # columns have other shapes
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
replicas = [[rank] for rank in range(4)] if ALONE else mesh["same"]
job.protect(model=model, optimizer=optimizer, replicas=replicas)
for at in job.steps(STEPS):
    with job.attempt():
        random = torch.Generator().manual_seed(100 * at + job.rank)
        x = torch.randn(8, 5, generator=random)
        strike("forward")
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters() if not ALONE else ():
            dist.all_reduce(parameter.grad, group=mesh["same"].get_group())
        strike("gate")
        optimizer.step()
        strike("optimizer")
digest = hashlib.sha256()
for parameter in model.parameters():
    state = optimizer.state[parameter]
    for tensor in (parameter, *(state[key] for key in sorted(state))):
        digest.update(tensor.detach().numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
