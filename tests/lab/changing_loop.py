"""The training script of test_state_changes.py: ``changing_loop.py KIND OUT``.

A step changes what is no tensor, or not of all ranks alike. ``KILL``: rank 1 dies in this step.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import fabric_train

KIND, OUT = sys.argv[1], Path(sys.argv[2])
KILL, EVENT, TOTAL = int(os.environ.get("KILL", "-1")), 20, 60

torch.manual_seed(0)
job = fabric_train.join()
net = nn.Sequential(
    nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
)
model = DistributedDataParallel(net, find_unused_parameters=KIND in ("unfreeze", "groups"))
if KIND in ("unfreeze", "groups"):
    net[0].requires_grad_(False)
trained = [one for one in net.parameters() if one.requires_grad or KIND != "groups"]
optimizer = torch.optim.AdamW(trained, lr=0.01)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7)
job.protect(model=model, optimizer=optimizer, average=average, scheduler=scheduler)


def change():
    if KIND in ("unfreeze", "groups"):
        net[0].requires_grad_(True)
    if KIND == "groups" and len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(net[0].parameters()), "initial_lr": 0.01})
        scheduler.base_lrs.append(0.01)
    if KIND == "hook":
        net[0].register_forward_hook(lambda _module, _inputs, output: output * 2)
    if KIND == "dropout":
        net[3].p = 0.5


for step in job.steps(TOTAL):
    with job.attempt():
        if step == EVENT:
            change()
        random = torch.Generator().manual_seed(1000 * step + job.rank)
        x, y = torch.randn(8, 16, generator=random), torch.randint(0, 4, (8,), generator=random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if step == KILL and job.rank == 1 and job.generation == 1 and not job.rehearsing:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    if job.applied:
        average.update_parameters(net)
        scheduler.step()

state = [*net.state_dict().values(), *average.state_dict().values()]
for group in optimizer.param_groups:
    state += [one for parameter in group["params"] for one in optimizer.state[parameter].values()]
lines = [f"{one.double().sum().item()!r}" for one in state]
(OUT / f"state.{job.rank}").write_text("\n".join([*lines, repr(scheduler.get_last_lr())]))
