"""``compiled_loop.py WHAT BACKEND STEPS OUT``: what torch.compile makes of a loop.

WHAT: ``ddp`` (the DDP object), ``collectives`` (a graph with functional collectives of a mesh and
of the world), ``fsdp`` (blocks of an FSDP2 model over a 2 × 2 mesh), ``step`` (the optimizer's
step, too), ``shapes`` (ddp, of batches that differ), ``whole`` (a step with fullgraph=True).
FAULTS as in ``grouped_loop.py``.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import fabric_train

WHAT, BACKEND, STEPS, OUT = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]
torch.set_num_threads(1)


def strike(moment):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Joined(nn.Module):
    """Sums over a row of the mesh, and over the world, in the middle of a graph."""

    def __init__(self, inner, group):
        super().__init__()
        self.inner, self.group = inner, group

    def forward(self, x):
        x = x - functional.all_reduce(x.mean(0), "sum", self.group) / 7
        parts = functional.all_gather_tensor(x.detach()[:1], 0, dist.group.WORLD)
        return self.inner(x * parts.mean(0).tanh())


class Net(nn.Module):
    """A model of a user."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def compiled(what):
    return torch.compile(what, backend=BACKEND)


torch.manual_seed(1)
job = fabric_train.join(late=WHAT in ("fsdp", "collectives"))
net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 1))
if WHAT in ("ddp", "step", "shapes"):
    net = Net(net)  # a class of this file: of torch's own modules alone dynamo compiles no frame
if WHAT == "fsdp":
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for number in (0, 2):
        net[number] = compiled(net[number])
        fully_shard(net[number], mesh=mesh)
    fully_shard(net, mesh=mesh)
    net.set_force_sum_reduction_for_comms(True)
    model = net
elif WHAT == "collectives":
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    model = DistributedDataParallel(compiled(Joined(net, mesh["rows"].get_group())))
else:
    model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
job.protect(model=model, optimizer=optimizer)
run = compiled(model) if WHAT in ("ddp", "step", "shapes") else model
step = compiled(optimizer.step) if WHAT == "step" else optimizer.step


def whole(x):
    optimizer.zero_grad()
    loss = (net(x) - x.sum(1, keepdim=True).sin()).pow(2).mean()
    loss.backward()
    optimizer.step()


if WHAT == "whole":
    whole = torch.compile(optimizer.step, backend=BACKEND, fullgraph=True)
for at in job.steps(STEPS):
    with job.attempt():
        random = torch.Generator().manual_seed(1000 * at + job.rank)
        rows = 16 + (at % 3 if WHAT == "shapes" else 0)
        x = torch.randn(rows, 8, generator=random)
        strike("forward")
        loss = (run(x) - x.sum(1, keepdim=True).sin()).pow(2).mean()
        optimizer.zero_grad()
        strike("backward")
        loss.backward()
        strike("gate")
        if WHAT == "whole":
            whole()
        step()
        strike("optimizer")
digest = hashlib.sha256()
for parameter in net.parameters():
    state = optimizer.state[parameter]
    for tensor in (parameter, *(state[key] for key in sorted(state))):
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        digest.update(own.detach().contiguous().numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
