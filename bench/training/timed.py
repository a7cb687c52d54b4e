"""How long a protected step is inside of our calls: ``fabric-run … timed.py DIRECTORY STEPS MS``.

MS: how long a step takes; what is computed takes less, and the rest is slept. BENCH_MESH: as in
``sharded.py``; without it, DDP. Before the optimizer's step all ranks have waited for each other
(the gradients' norm, or the loss that is logged), so the vote waits for nobody. Each rank leaves
``calls.RANK``: for each step, ms between the steps, in the attempt's two ends, and at the gate.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

import fabric_train
from bench.training import workload


class Calls:
    """Seconds inside of our calls, of the present step and of all before."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, float]] = []
        self._between = self._ends = self._gate = self._since = 0.0

    def each(self, steps: Iterable[int]) -> Iterator[int]:
        """The same steps; what each next one takes counts as between."""
        self._since = time.perf_counter()
        for step in steps:
            self._between = time.perf_counter() - self._since
            self._ends = self._gate = 0.0
            yield step
            self.steps.append((self._between, self._ends, self._gate))
            self._since = time.perf_counter()

    def begin(self, *_: object) -> None:
        """A call of ours begins."""
        self._since = time.perf_counter()

    def end(self) -> None:
        """The attempt has been entered or left."""
        self._ends += time.perf_counter() - self._since

    def gate(self, *_: object) -> None:
        """All hooks before the optimizer's own step have run."""
        self._gate += time.perf_counter() - self._since


def main() -> None:
    """Train."""
    directory, total, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3
    calls = Calls()
    register_optimizer_step_pre_hook(calls.begin)  # before ours, so it runs first
    sharded = "BENCH_MESH" in os.environ
    job = fabric_train.join(late=sharded)
    torch.manual_seed(0)
    data = workload.Data()
    if sharded:
        from bench.training.sharded import make_model

        model: nn.Module = make_model()
    else:
        model = DistributedDataParallel(workload.Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    job.protect(model=model, optimizer=optimizer)
    optimizer.register_step_pre_hook(calls.gate)
    for step in calls.each(job.steps(total)):
        began = time.perf_counter()
        calls.begin()
        with job.attempt():
            calls.end()
            loss = data.loss(model, range(16 * job.rank, 16 * job.rank + 16))
            optimizer.zero_grad()
            loss.backward()
            if not job.rehearsing:
                time.sleep(max(0.0, step_s - (time.perf_counter() - began)))
            if sharded:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                dist.all_reduce(loss.detach())
            optimizer.step()
            calls.begin()
        calls.end()
        del step
    lines = (" ".join(f"{1e3 * one:.4f}" for one in some) for some in calls.steps)
    (directory / f"calls.{job.rank}").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
