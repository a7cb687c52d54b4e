"""The script of test_refused_groups.py: each way to have state or groups that nobody protects."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import fabric_train

job = fabric_train.join()
net = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(net.parameters())


attempts = {
    "group": lambda: dist.new_group([0, 1]),
    "gloo": lambda: dist.new_group([0, 1], backend="gloo"),
    "mesh": lambda: init_device_mesh("cpu", (job.world,)),
    "fsdp": lambda: fully_shard(nn.Linear(4, 4)),
    "zero": lambda: job.protect(
        model=net, optimizer=ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW)
    ),
}
for name, attempt in attempts.items():
    try:
        attempt()
        text = "was not refused"
    except (RuntimeError, NotImplementedError, TypeError) as error:
        text = str(error)
    print(f"{name}: {text}", file=sys.stderr, flush=True)

model = DistributedDataParallel(net)
job.protect(model=model, optimizer=optimizer)
for _ in job.steps(2):
    with job.attempt():
        loss = model(torch.ones(1, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
