"""One rank of a GPU run; started by :mod:`lab.gpu.run`, one per host of the lab.

Writes JSON lines: ``ready`` after a first round without faults, a ``result`` with the SHA-256 of
every bit of each step's outcome, ``end``, or ``error``. Exit status 1 after an error.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from lab.gpu.plan import STEPS, WORLD, Step, seed


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--store", type=Path, required=True, help="rendezvous file of the ranks")
    parser.add_argument("--go", type=Path, required=True, help="wait for this file when ready")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True, help="different inputs")
    parser.add_argument("--seconds", type=float, required=True, help="repeat them for so long")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    return parser.parse_args()


class Ranks:
    """The collectives of ``torch.distributed`` on one device."""

    def __init__(self, rank: int, store: Path, backend: str) -> None:
        # Imported here: everything else of lab.gpu works without.
        torch: Any = importlib.import_module("torch")
        dist: Any = importlib.import_module("torch.distributed")

        self.torch = torch
        self.dist = dist
        self.rank = rank
        self.device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=WORLD)

    def step(self, step: Step, number: int) -> str:
        """Runs it and gives the SHA-256 of the outcome."""
        torch, dist = self.torch, self.dist
        generator = torch.Generator(device="cpu").manual_seed(number)
        # Made on the CPU: the same on every machine and in every run.
        if step.dtype.startswith("int"):
            made = torch.randint(-(1 << 20), 1 << 20, (step.elements,), generator=generator)
        else:
            made = torch.randn(step.elements, generator=generator)
        data = made.to(getattr(torch, step.dtype)).to(self.device)
        if step.operation == "all_reduce":
            dist.all_reduce(data)
        elif step.operation == "all_to_all":
            out = torch.empty_like(data)
            dist.all_to_all_single(out, data)
            data = out
        else:
            out = torch.empty_like(data)
            peer = 1 - self.rank
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, data, peer), dist.P2POp(dist.irecv, out, peer)]
            )
            for work in works:
                work.wait()
            data = out
        raw = data.contiguous().view(torch.uint8).cpu().numpy()
        return hashlib.sha256(raw.tobytes()).hexdigest()

    def agree(self, more: bool) -> bool:
        """What rank 0 thinks."""
        flag = self.torch.tensor([int(more)], device=self.device)
        self.dist.broadcast(flag, 0)
        return bool(flag.item())

    def close(self) -> None:
        """Ends the group in good order."""
        self.dist.destroy_process_group()


def play(
    ranks: Ranks, args: argparse.Namespace, write: Callable[[dict[str, object]], None]
) -> None:
    """Rounds until the time is over, the first of them before the faults may begin."""
    number = 0
    until = 0.0
    while True:
        for index, step in enumerate(STEPS):
            digest = ranks.step(step, seed(number % args.rounds, index, args.rank))
            write({"type": "result", "round": number, "step": index, "sha256": digest})
        number += 1
        if number == 1:
            write({"type": "ready"})
            while not args.go.exists():
                time.sleep(0.01)
            until = time.monotonic() + args.seconds
        if not ranks.agree(number < args.rounds or time.monotonic() < until):
            break
    write({"type": "end", "rounds": number})


Write = Callable[[dict[str, object]], None]


def serve(play: Callable[[Ranks, argparse.Namespace, Write], None]) -> int:
    """One rank that plays, from start to end. Returns the exit status."""
    args = arguments()
    with args.out.open("w") as out:

        def write(row: dict[str, object], to: IO[str] = out) -> None:
            to.write(json.dumps(row | {"t_ns": time.monotonic_ns()}) + "\n")
            to.flush()

        try:
            ranks = Ranks(args.rank, args.store, args.backend)
            play(ranks, args, write)
            ranks.close()
        except Exception as error:
            traceback.print_exc()
            write({"type": "error", "text": f"{type(error).__name__}: {error}"})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(serve(play))
