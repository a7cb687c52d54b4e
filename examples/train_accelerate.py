"""Accelerate, in a loop of one's own: lines marked `+` are all that it takes.

    fabric-run --standalone --nproc-per-node 2 --spares 1 examples/train_accelerate.py

Kill any of its processes meanwhile: the job goes on at the same step, with the same bits.
"""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy

import fabric_train  # +


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and their corners: a function of step and rank, so that it can be repeated."""
    random = torch.Generator().manual_seed(1_000_003 * step + rank)
    points = torch.randn(16, 2, generator=random)
    return points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    job = fabric_train.join_framework()  # + before Accelerator()
    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    model, wrapped = accelerator.prepare(net, optimizer)
    job.protect(model=model, optimizer=optimizer, schedule=schedule)  # +
    for step in job.steps(args.steps):  # + instead of range(args.steps)
        with job.attempt():  # +
            points, corners = batch(step, job.rank)
            loss = cross_entropy(model(points), corners)
            wrapped.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            wrapped.step()
            schedule.step()
        if job.applied and step % 20 == 0 and job.rank == 0:
            print(f"step {step:4}  loss {float(loss.detach()):.3f}", flush=True)
    weights = b"".join(one.numpy().tobytes() for one in net.state_dict().values())
    if job.rank == 0:
        print("SHA-256 of the weights:", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
