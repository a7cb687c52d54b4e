"""``gathered_loop.py STEPS OUT``: all ranks have the parameters, some a half of the optimizer's.

2 x 2 ranks: those of a row have the halves of one copy of all parameters, each with its optimizer,
and gather them behind its step. So does Megatron's distributed optimizer with two instances. FAULTS
as in ``grouped_loop.py``; ``gather``: while parameters are gathered.
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
FAULTS = [one.split(":") for one in os.environ.get("FAULTS", "").split(",") if one]


def strike(moment):
    for rank, step, when in FAULTS:
        name = OUT / f"struck.{rank}-{step}-{when}"
        now = (job.rank, at, moment) == (int(rank), int(step), when)
        if now and not job.rehearsing and not name.exists():
            name.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def flat(tensors):
    return torch.cat([one.flatten() for one in tensors])


def gather():
    strike("gather")
    whole = torch.empty(2 * len(half))
    row = mesh["row"].get_group()
    with dist._coalescing_manager(row):
        dist.all_gather_into_tensor(whole, half.detach(), group=row)
    torch._foreach_copy_(
        [one.data.view(-1) for one in model.parameters()],
        list(whole.split([one.numel() for one in model.parameters()])),
    )


job = fabric_train.join(late=True)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("same", "row"))
torch.manual_seed(1)
model = torch.nn.Linear(5, 3, dtype=torch.float32)  # 18 elements
mine = mesh["row"].get_local_rank()
half = flat(one.detach() for one in model.parameters()).chunk(2)[mine].clone().requires_grad_(True)
optimizer = torch.optim.AdamW([half], lr=0.05)
holders = {"model": [[0, 1, 2, 3]], "optimizer": mesh["same"]}
job.protect(model=model, optimizer=optimizer, replicas=holders, gather=gather)
at = 0
for at in job.steps(STEPS):
    with job.attempt():
        random = torch.Generator().manual_seed(100 * at + job.rank)
        x = torch.randn(8, 5, generator=random)
        strike("forward")
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        model.zero_grad()
        loss.backward()
        gradient = flat(one.grad for one in model.parameters())
        with dist._coalescing_manager(async_ops=True) as sums:  # as Megatron and FSDP do
            for bucket in gradient.split(9):
                dist.all_reduce(bucket, async_op=True)
        sums.wait()
        half.grad = gradient.chunk(2)[mine]
        strike("gate")
        optimizer.step()
        strike("optimizer")
digest = hashlib.sha256()
kept = optimizer.state[half]
for tensor in (*model.parameters(), half, *(kept[key] for key in sorted(kept))):
    digest.update(tensor.detach().numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
