"""``hsdp_loop.py STEPS OUT``: FSDP2 over a 2 × 2 mesh, replicate × shard, AdamW, clipped gradients.

MESH=4: four shards without replicas. PARALLEL=tensor: the second dimension splits layers.

FAULTS as in ``grouped_loop.py``; ``unheard``: this rank does not hear that a vote has succeeded;
``voted``: it dies behind it, when all others have heard; ``host``: it waits for its host's end;
``inside``: in the middle of the optimizer's step, of Lars. What comes out is each rank's own shard,
and how many applied steps were run again.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import fabric_train

MESH = tuple(int(one) for one in os.environ.get("MESH", "2x2").split("x"))
OPTIMIZER = os.environ.get("OPTIMIZER", "AdamW")
STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment, act=lambda: os.kill(os.getpid(), signal.SIGKILL)):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            act()


def unheard():
    raise RuntimeError("the vote was not heard")


def die_later():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def voted(*args):
    result = vote(*args)
    strike("voted", die_later)
    strike("unheard", unheard)
    return result


def own(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Own(torch.optim.SGD):
    """A class that nobody knows: it may look at more than one element. Its step has no collective.

    So ranks may have applied a step that others have not.
    """


class Lars(torch.optim.Optimizer):
    """Uses the norms of whole tensors, so its step runs collectives, and keeps a plain number."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for place, one in enumerate(group["params"]):
                norms = torch.stack([own(one).square().sum(), own(one.grad).square().sum()])
                torch.distributed.all_reduce(norms)
                strike(f"inside{place}")
                state = self.state[one]
                trust = float(norms[0].sqrt() / (norms[1].sqrt() + 1e-3))
                state["trust"] = 0.9 * state.get("trust", 1.0) + 0.1 * trust + 1e-3 * job.rank
                mean = state.setdefault("mean", torch.zeros_like(one))
                mean.mul_(0.9).add_(one.grad)
                one.sub_(mean * (group["lr"] * state["trust"]))


torch.manual_seed(1)
job = fabric_train.join(late=True)
mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("replicate", "shard")[-len(MESH) :])
TENSOR = os.environ.get("PARALLEL") == "tensor"
a, b, c = (12, 6, 2) if TENSOR else (13, 5, 1)  # torch splits layers evenly alone
model = nn.Sequential(nn.Linear(7, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c))
if TENSOR:
    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(),
        "4": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["shard"], plan)
    mesh = mesh["replicate"]
for layer in (model[0], model[2]):  # 13 and 5 rows: shards are uneven
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.set_force_sum_reduction_for_comms(True)  # gloo has no mean
options = {"SGD": {"momentum": 0.9, "nesterov": True}}.get(OPTIMIZER, {})
trained, beside = [*model.parameters()], None
if OPTIMIZER == "Muon":  # it takes matrices alone
    trained = [one for one in model.parameters() if one.ndim == 2 and len(one) > 1]
    rest = [one for one in model.parameters() if one.ndim < 2 or len(one) < 2]
    beside = torch.optim.AdamW(rest, lr=0.01)
kind = {"Lars": Lars, "Own": Own}.get(OPTIMIZER) or getattr(torch.optim, OPTIMIZER)
optimizer = kind(trained, lr=0.01, **options)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
log = fabric_train.GradientLog(buddies=int(os.environ.get("BUDDIES", "1")), renew_steps=4)
more = {"beside": beside} if beside else {}
job.protect(model=model, optimizer=optimizer, warm_up=warm_up, gradient_log=log, **more)
vote, job._progress.vote = job._progress.vote, voted
for at in job.steps(STEPS):
    with job.attempt():
        random = torch.Generator().manual_seed(1000 * at + job.rank)
        if TENSOR:  # ranks that share a layer compute the same batch
            random = torch.Generator().manual_seed(1000 * at + mesh.get_local_rank())
        x = torch.randn(16, 7, generator=random)
        strike("host", lambda: time.sleep(600))
        strike("forward")
        loss = (model(x) - x.sum(1, keepdim=True).sin()).pow(2).mean()
        optimizer.zero_grad()
        if beside:
            beside.zero_grad()
        strike("backward")
        loss.backward()
        strike("clip")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        strike("gate")
        optimizer.step()
        if beside:
            beside.step()
        strike("optimizer")
        warm_up.step()
digest = hashlib.sha256()
for parameter in model.parameters():
    state = {**optimizer.state[parameter], **(beside.state[parameter] if beside else {})}
    for tensor in (parameter, *(state[key] for key in sorted(state))):
        if not isinstance(tensor, torch.Tensor):
            tensor = torch.tensor(tensor, dtype=torch.float64)
        digest.update(own(tensor.detach()).contiguous().numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
(OUT / f"again.{job.rank}").write_text(str(job.steps_again))
