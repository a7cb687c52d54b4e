"""``spread_loop.py STEPS OUT``: experts on their ranks; checkpoints of DCP in the loop.

WHAT=experts: each rank has one expert, a DTensor's shard, and tokens go there and back.
WHAT=async: FSDP2, and ``async_save`` of DCP in every third attempt, before its step; outside: its
``save`` behind the attempt. FAULTS as in ``grouped_loop.py``. What comes out is each rank's part.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import fabric_train

WHAT = os.environ.get("WHAT", "experts")
STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]
SAVED = OUT / "checkpoint"
TOKENS = 8


def strike(moment):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def own(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Experts(nn.Module):
    """A shared layer, and an expert on each rank: its tokens come from all."""

    def __init__(self, mesh):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        whole = torch.randn(mesh.size(), 4, 4) / 2
        self.experts = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))

    def forward(self, x):
        tokens = self.shared(x)  # the expert of a token is its place's
        sent = all_to_all_single(torch.empty_like(tokens), tokens)
        strike("forward")
        done = (sent @ self.experts.to_local()[0]).tanh()
        return all_to_all_single(torch.empty_like(done), done.contiguous())


torch.manual_seed(1)
job = fabric_train.join(late=True)
mesh = init_device_mesh("cpu", (job.world,))
if WHAT == "experts":
    model = Experts(mesh)
else:
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 4))
    fully_shard(model, mesh=mesh)
    model.set_force_sum_reduction_for_comms(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
job.protect(model=model, optimizer=optimizer)


def save():
    state = {"model": model.state_dict(), "step": at}
    if WHAT == "async":
        dcp.async_save(state, checkpoint_id=SAVED).result()
    else:
        dcp.save(state, checkpoint_id=SAVED)


for at in job.steps(STEPS):
    with job.attempt():
        random = torch.Generator().manual_seed(1000 * at + job.rank)
        x = torch.randn(TOKENS, 4, generator=random)
        if WHAT == "async" and at % 3 == 2 and not job.rehearsing:
            save()
        loss = (model(x) - x.sin()).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        if WHAT == "experts":
            for parameter in model.shared.parameters():
                dist.all_reduce(parameter.grad)
        strike("gate")
        optimizer.step()
        strike("optimizer")
    if WHAT == "outside" and job.applied:
        save()
digest = hashlib.sha256()
for parameter in model.parameters():
    state = optimizer.state[parameter]
    for tensor in (parameter, *(state[key] for key in sorted(state))):
        digest.update(own(tensor.detach()).contiguous().numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
