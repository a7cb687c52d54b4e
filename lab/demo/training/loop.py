"""The GPT of ``examples`` with a record of each step: ``loop.py DIRECTORY STEPS [MESH]``.

With MESH its parameters are in shards, as those of ``train_fsdp2.py``. Each process appends a line
of JSON for each step that counts to ``DIRECTORY/PID.jsonl``, and the ranks write ``weights.RANK``
at the end. Until ``DIRECTORY/fast`` exists each step waits for ``PACE_S``, so that a person can
follow.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fabric_train

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TEXT = Path("/usr/share/common-licenses/GPL-3")


def main() -> None:
    """Train."""
    sys.path.insert(0, str(EXAMPLES))
    gpt = importlib.import_module("train_gpt")
    directory, total = Path(sys.argv[1]), int(sys.argv[2])
    mesh = tuple(int(one) for one in sys.argv[3].split("x")) if len(sys.argv) > 3 else ()
    pace_s = float(os.environ.get("PACE_S", "0"))
    host = os.environ.get("DEMO_HOST", "")
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    torch.manual_seed(0)
    job = fabric_train.join(late=bool(mesh))
    fsdp2 = importlib.import_module("train_fsdp2") if mesh else None
    model: nn.Module = fsdp2.make_model(mesh) if fsdp2 else DistributedDataParallel(gpt.Gpt(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer)
    with (directory / f"{os.getpid()}.jsonl").open("a", buffering=1) as progress:
        for step in job.steps(total):
            with job.attempt():
                inputs, targets = gpt.batch(text, step, job.rank)
                loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if not job.applied:
                continue
            row = {
                "t_ns": time.monotonic_ns(), "step": step + 1, "loss": round(loss.item(), 4),
                "rank": job.rank, "generation": job.generation, "host": host, "pid": os.getpid(),
            }  # fmt: skip
            progress.write(json.dumps(row) + "\n")
            if pace_s and not (directory / "fast").exists():
                time.sleep(pace_s)
    digest = fsdp2.digest(model, optimizer) if fsdp2 else _digest(model)
    (directory / f"weights.{job.rank}").write_text(digest)


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().flatten().view(torch.uint8).tolist()))
    return digest.hexdigest()


if __name__ == "__main__":
    main()
