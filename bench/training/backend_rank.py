"""One rank of `bench.migrate.backend`: the same all-reduce over gloo and over the plugin, in turn.

``python -m bench.training.backend_rank RANK WORLD STORE ROUNDS MIB``; rank 0 prints JSON: by
backend, milliseconds of each round's all-reduce and microseconds of each round's vote.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from fabric_train.groups import backend
from fabric_train.groups.collectives import GenerationGroup, connect_generation
from fabric_train.messages.process import Assignment

VOTES = 50
COMPARED = ("gloo", "plugin")
"""Of `backend.BACKENDS`, those of host memory."""


def connect(name: str, generation: int, rank: int, world: int, store: str) -> GenerationGroup:
    """A group of the backend ``name``; all meet in the file ``store``."""
    os.environ[backend.VARIABLE] = name
    meeting = dist.PrefixStore(f"{name}.{generation}", dist.FileStore(store, world))
    return connect_generation(Assignment(generation, rank, world, store), meeting, 60)


def measure(group: GenerationGroup, tensor: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of an all-reduce of ``tensor``, and microseconds of a vote."""
    group.vote()
    begin = time.perf_counter()
    group.group.allreduce([tensor]).wait()
    middle = time.perf_counter()
    for _ in range(VOTES):
        group.vote()
    end = time.perf_counter()
    return (middle - begin) * 1e3, (end - middle) * 1e6 / VOTES


def main() -> None:
    """Measure."""
    rank, world, rounds, mib = (int(sys.argv[place]) for place in (1, 2, 4, 5))
    torch.set_num_threads(1)
    groups = {
        name: connect(name, number, rank, world, sys.argv[3])
        for number, name in enumerate(COMPARED, 1)
    }
    source = torch.full((mib << 18,), float(rank + 1))
    taken: dict[str, Any] = {name: {"reduce_ms": [], "vote_us": []} for name in groups}
    for number in range(-1, rounds):
        for name in sorted(groups, reverse=number % 2 == 0):
            tensor = source.clone()
            reduce_ms, vote_us = measure(groups[name], tensor)
            if not torch.equal(tensor, torch.full_like(tensor, world * (world + 1) / 2)):
                raise SystemExit(f"{name}: the sum is wrong")
            if number >= 0:  # the first round opens what either needs
                taken[name]["reduce_ms"].append(reduce_ms)
                taken[name]["vote_us"].append(vote_us)
    if rank == 0:
        print(json.dumps(taken))
    groups[COMPARED[0]].vote()  # nobody leaves while others still measure


if __name__ == "__main__":
    main()
