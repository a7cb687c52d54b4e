"""The loop of one torchft replica group of one rank: ``replica.py DIRECTORY STEPS GROUP``.

As torchft's own example for DDP has it, so every collective's error skips the step and its batch.
The generation is torchft's quorum.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from bench.training import workload
from bench.training.samples import samples_of
from bench.training.trace import Phase, Trace

GROUPS = 4


def main() -> None:
    """Train."""
    directory, total, group = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    trace = Trace(directory)
    data = workload.Data()
    torch.manual_seed(0)
    net = workload.Net()
    inner = workload.make_optimizer(net)
    scheduler = workload.make_scheduler(inner)
    parts = {"net": net, "optimizer": inner, "scheduler": scheduler}

    def load(state: dict[str, Any]) -> None:
        for name, part in parts.items():
            part.load_state_dict(state[name])

    def save() -> dict[str, Any]:
        return {name: part.state_dict() for name, part in parts.items()}

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=2,
        load_state_dict=load, state_dict=save, replica_id=f"group_{group}", rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1",
        timeout=timedelta(seconds=30),
    )  # fmt: skip
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, inner)
    workload.record_phases(trace, net, inner)
    attempt = 0
    while (step := manager.current_step()) < total:
        trace.phase(Phase.BETWEEN)
        trace.control.wait(step)
        samples = samples_of(attempt, group, GROUPS)
        trace.draw(group, step, samples)
        attempt += 1
        trace.phase(Phase.FORWARD)
        optimizer.zero_grad()
        loss = data.loss(model, samples)
        trace.phase(Phase.BACKWARD)
        loss.backward()
        trace.phase(Phase.GATE)
        optimizer.step()
        if manager.current_step() > step:
            scheduler.step()
            trace.commit(group, manager._quorum_id, manager.current_step())  # noqa: SLF001
    manager.shutdown(wait=False)


main()
