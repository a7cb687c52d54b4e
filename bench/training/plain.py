"""The loop of a job without protection: ``torchrun … plain.py DIRECTORY STEPS EVERY``.

Rank 0 writes a checkpoint after every ``EVERY`` steps (0: never); a job that is started again goes
on from the last one. The generation is torchrun's count of starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.training import workload
from bench.training.samples import Sampler
from bench.training.trace import Phase, Trace


def main() -> None:
    """Train."""
    directory, total, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    checkpoint = directory / "checkpoint"
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    trace = Trace(directory)
    data = workload.Data()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = workload.Net()
    model = DistributedDataParallel(net)
    optimizer = workload.make_optimizer(model)
    scheduler = workload.make_scheduler(optimizer)
    sampler = Sampler(dist.get_world_size())
    parts = {"model": net, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler}
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        done = saved["sampler"]["position"]
    workload.record_phases(trace, net, optimizer)
    for step in range(done, total):
        trace.phase(Phase.BETWEEN)
        trace.control.wait(step)
        samples = sampler.take(rank)
        trace.draw(rank, step, samples)
        trace.phase(Phase.FORWARD)
        loss = data.loss(model, samples)
        optimizer.zero_grad()
        trace.phase(Phase.BACKWARD)
        loss.backward()
        trace.phase(Phase.GATE)
        optimizer.step()
        scheduler.step()
        trace.commit(rank, generation, step + 1)
        if rank == 0 and every and (step + 1) % every == 0:
            draft = checkpoint.with_suffix(".new")
            torch.save({name: part.state_dict() for name, part in parts.items()}, draft)
            draft.replace(checkpoint)
    dist.destroy_process_group()


main()
