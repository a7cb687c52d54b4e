"""The loop of a job with shards: ``fabric-run … sharded.py DIRECTORY STEPS [STEP,STEP…]``.

As ``protected.py``; BENCH_MESH=2x2 is HSDP, BENCH_MESH=4 is FSDP2 without replicas, whose shards
BENCH_BUDDIES ranks keep. A spare waits for its rank before it builds the model. Digests are of each
rank's own shards.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import fabric_train
from bench.training import workload
from bench.training.samples import Sampler
from bench.training.trace import Phase, Trace

MESH = tuple(int(one) for one in os.environ.get("BENCH_MESH", "2x2").split("x"))


def make_model() -> nn.Module:
    """4.3 million parameters in four layers; the last one's 10 rows are uneven shards of 4."""
    mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("replicate", "shard")[-len(MESH) :])
    width = workload.WIDTH
    model = nn.Sequential(
        nn.Linear(workload.FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, workload.CLASSES),
    )  # fmt: skip
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.set_force_sum_reduction_for_comms(True)  # gloo has no mean
    return model


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 of this rank's shards, of the optimizer's state for them, and of learning rates."""
    found = hashlib.sha256(repr([group["lr"] for group in optimizer.param_groups]).encode())
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        for tensor in (parameter, *(state[key] for key in sorted(state))):
            found.update(_own(tensor.detach()).contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def _own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    """Train."""
    directory, total = Path(sys.argv[1]), int(sys.argv[2])
    hashed = {int(step) for step in sys.argv[3].split(",")} if len(sys.argv) > 3 else set[int]()
    trace = Trace(directory)
    data = workload.Data()
    trace.phase(Phase.WARM)
    job = fabric_train.join(late=True)
    trace.phase(Phase.BETWEEN)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    sampler = Sampler(job.world)
    log = fabric_train.GradientLog(buddies=int(os.environ.get("BENCH_BUDDIES", "1")))
    job.protect(
        model=model, optimizer=optimizer, warm_up=warm_up, local={"sampler": sampler},
        gradient_log=log,
    )  # fmt: skip
    optimizer.register_step_pre_hook(lambda *_: trace.phase(Phase.OPTIMIZER))
    committed = 0
    for step in job.steps(total):
        if not job.rehearsing:
            trace.phase(Phase.BETWEEN)
            trace.control.wait(step)
        with job.attempt():
            samples = sampler.take(job.rank)
            if not job.rehearsing:
                trace.draw(job.rank, step, samples)
                trace.phase(Phase.FORWARD)
            loss = data.loss(model, samples)
            optimizer.zero_grad()
            trace.phase(Phase.BACKWARD)
            loss.backward()
            trace.phase(Phase.GATE)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm_up.step()
        if job.applied:
            trace.commit(job.rank, job.generation, step + 1)
            if job.generation != committed:
                committed = job.generation
                hashed.add(step + 1)
            if step + 1 in hashed:
                trace.state(job.rank, step + 1, digest(model, optimizer))
    trace.state(job.rank, total, digest(model, optimizer))


if __name__ == "__main__":
    main()
