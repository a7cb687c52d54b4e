"""The loop of a protected job: ``fabric-run … protected.py DIRECTORY STEPS [STEP,STEP…]``.

The last argument lists steps after which the process hashes its state. It also does so after its
first step in each generation, or ``HASH_LATER`` steps after that one.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import fabric_train
from bench.training import workload
from bench.training.samples import Sampler
from bench.training.trace import Phase, Trace


def main() -> None:
    """Train."""
    directory, total = Path(sys.argv[1]), int(sys.argv[2])
    hashed = {int(step) for step in sys.argv[3].split(",")} if len(sys.argv) > 3 else set[int]()
    later = int(os.environ.get("HASH_LATER", "0"))
    trace = Trace(directory)
    data = workload.Data()
    torch.manual_seed(0)
    job = fabric_train.join()
    net = workload.Net()
    trace.corrupt = functools.partial(workload.corrupt, net)
    model = DistributedDataParallel(net)
    optimizer = workload.make_optimizer(model)
    scheduler = workload.make_scheduler(optimizer)
    sampler = Sampler(job.world)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler, local={"sampler": sampler})
    workload.record_phases(trace, net, optimizer)
    committed = 0
    for step in job.steps(total):
        rehearsing = job.rehearsing
        trace.phase(Phase.BETWEEN)
        if not rehearsing:
            trace.control.wait(step)
        with job.attempt():
            samples = sampler.take(job.rank)
            if not rehearsing:
                trace.draw(job.rank, step, samples)
            trace.phase(Phase.FORWARD)
            loss = data.loss(model, samples)
            optimizer.zero_grad()
            trace.phase(Phase.BACKWARD)
            loss.backward()
            trace.phase(Phase.GATE)
            optimizer.step()
            scheduler.step()
        if rehearsing and not job.rehearsing:
            trace.phase(Phase.WARM)
        if job.applied:
            trace.commit(job.rank, job.generation, step + 1)
            if job.generation != committed:
                committed = job.generation
                hashed.add(step + 1 + later)
            if step + 1 in hashed:
                digest = workload.state_digest(model, optimizer, scheduler)
                trace.state(job.rank, step + 1, digest)
    trace.state(job.rank, total, workload.state_digest(model, optimizer, scheduler))


main()
