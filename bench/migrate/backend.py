"""All-reduce of training ranks over the network plugin, beside gloo: unshaped, on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.plugin.quiet import Quiet
from bench.report import Row
from fabric_train.groups.backend import environment
from lab.node import REPO

RANKS = 4
MIB = 64
TIMEOUT_S = 240.0


def backend(*, quick: bool) -> list[Row]:
    """Throughput of a 64 MiB all-reduce of four ranks, and the latency of a step's vote."""
    quiet = Quiet()
    taken = quiet.measure(lambda: measured(5 if quick else 21))
    return quiet.noted(rows(taken))


def measured(rounds: int) -> Mapping[str, Mapping[str, list[float]]]:
    """By backend, ``reduce_ms`` and ``vote_us`` of each round. Raises ``RuntimeError``."""
    with tempfile.TemporaryDirectory() as directory:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.training.backend_rank", str(rank), str(RANKS),
                 str(Path(directory, "store")), str(rounds), str(MIB)],
                env={**os.environ, **environment("plugin", os.environ, standalone=True),
                     "OMP_NUM_THREADS": "1"},
                cwd=REPO, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        try:
            outputs = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if failed := [number for number, rank in enumerate(ranks) if rank.returncode]:
        raise RuntimeError(f"ranks {failed} have failed")
    result: Mapping[str, Mapping[str, list[float]]] = json.loads(outputs[0])
    return result


def rows(taken: Mapping[str, Mapping[str, list[float]]]) -> list[Row]:
    """The rows of ``measured``. Pure."""
    plugin, gloo = taken["plugin"], taken["gloo"]
    ratios = [theirs / ours for theirs, ours in zip(gloo["reduce_ms"], plugin["reduce_ms"],
                                                    strict=True)]  # fmt: skip
    size_mb = MIB * 1.048576
    return [
        Row(
            f"{MIB} MiB all-reduce of {RANKS} ranks, unshaped: throughput, part of gloo's",
            0.8, median(ratios), "", better="higher",
            note=f"{size_mb / median(plugin['reduce_ms']):.3g} GB/s beside "
            f"{size_mb / median(gloo['reduce_ms']):.3g}; medians of {len(ratios)} rounds",
            samples={"plugin": plugin["reduce_ms"], "gloo": gloo["reduce_ms"]},
        ),
        Row(
            "the vote before an optimizer's step", None, median(plugin["vote_us"]), "us",
            peer=median(gloo["vote_us"]), note="peer: gloo",
            samples={"plugin": plugin["vote_us"], "gloo": gloo["vote_us"]},
        ),
    ]  # fmt: skip
