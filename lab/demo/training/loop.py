"""The GPT of ``examples/train_gpt.py`` with a record of each step: ``loop.py DIRECTORY STEPS``.

Each process appends a line of JSON for each step that counts to ``DIRECTORY/PID.jsonl``, and the
ranks write ``weights.RANK`` at the end. Until ``DIRECTORY/fast`` exists each step waits for
``PACE_S``, so that a person can follow.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fabric_train

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_gpt.py"
TEXT = Path("/usr/share/common-licenses/GPL-3")


def example() -> Any:  # noqa: ANN401
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Train."""
    directory, total = Path(sys.argv[1]), int(sys.argv[2])
    pace_s = float(os.environ.get("PACE_S", "0"))
    host = os.environ.get("DEMO_HOST", "")
    gpt = example()
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    torch.manual_seed(0)
    job = fabric_train.join()
    model = DistributedDataParallel(gpt.Gpt(64, 2))
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
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().flatten().view(torch.uint8).tolist()))
    (directory / f"weights.{job.rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
