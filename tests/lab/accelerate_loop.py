"""``accelerate_loop.py STEPS OUT``: Accelerate in a loop of one's own, and ranks that die in it.

FAULTS: rank:step:moment, each strikes once, not in a rehearsal.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

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
job = fabric_train.join_framework()
accelerator = Accelerator(cpu=True)
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 1))
net[1].register_full_backward_hook(lambda *_: strike("backward"))
plain = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(plain, STEPS)
model, optimizer = accelerator.prepare(net, plain)
job.protect(model=model, optimizer=plain, schedule=schedule)
for at in job.steps(STEPS):
    with job.attempt():
        if not job.rehearsing:
            with (OUT / f"attempts.{os.getpid()}").open("a") as attempts:
                attempts.write(f"{job.rank}:{at}\n")
        random = torch.Generator().manual_seed(1000 * at + job.rank)
        x = torch.randn(16, 8, generator=random)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        strike("forward")
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        mean = accelerator.gather(loss.detach()).mean()
        strike("gate")
        optimizer.step()
        strike("optimizer")
        schedule.step()
digest = hashlib.sha256(f"{float(mean)} {schedule.get_last_lr()}".encode())
for tensor in net.state_dict().values():
    digest.update(tensor.numpy().tobytes())
for state in plain.state_dict()["state"].values():
    for value in state.values():
        digest.update(value.numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
