"""``python -m lab.gpu.lines``: does NCCL's LL128 see whole lines in host memory?

Its GPU reads each line of 128 bytes while the network's bytes are written, and takes it for whole
once the last 8 are there. That is safe where the halves of a line become visible in their order. A
read of host memory over PCIe may take its halves in any order, so NCCL uses LL128 there only when
``NCCL_PROTO`` forces it to. This sums (:mod:`lab.gpu.loop`) with each protocol over each network,
and counts wrong results.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from lab.cluster import Cluster
from lab.gpu.machine import cannot
from lab.gpu.plan import FORCED, PROTOCOLS, Network
from lab.gpu.run import Outcome, run_job


@dataclass(frozen=True, slots=True)
class Count:
    """One run of ``seconds``: sums of each rank, and how many were wrong."""

    network: str
    protocol: str
    flapping: bool
    seconds: float
    sums: int
    wrong: tuple[int, ...]
    lengths: tuple[int, ...]
    """Of the runs of wrong numbers that were described, each once."""


def loop() -> list[str]:
    """The rank's program."""
    return [sys.executable, "-m", "lab.gpu.loop"]


def count(outcome: Outcome, network: str, protocol: str, seconds: float, flapping: bool) -> Count:
    """What the rows of both ranks say. Raises ``RuntimeError`` for a rank that did not end."""
    ends = []
    lengths = set()
    for rank, rows in enumerate(outcome.rows):
        ends += [row for row in rows if row["type"] == "end"]
        if len(ends) != rank + 1:
            raise RuntimeError(f"rank {rank} did not end: {rows[-1:]}")
        lengths |= {n for row in rows if row["type"] == "wrong" for _, n in _runs(row)}
    return Count(
        network, protocol, flapping, seconds, _int(ends[0], "rounds"),
        tuple(_int(end, "wrong") for end in ends), tuple(sorted(lengths)),
    )  # fmt: skip


def _int(row: object, key: str) -> int:
    assert isinstance(row, dict)
    return int(row[key])


def _runs(row: object) -> list[tuple[int, int]]:
    assert isinstance(row, dict)
    return [(place, n) for place, n in row["runs"]]


def main() -> int:
    """Each protocol over each network, without faults; the plugin with a flapping rail as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", action="append", choices=(*PROTOCOLS, FORCED))
    parser.add_argument("--network", action="append", choices=get_args(Network))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--rate", default="2gbit", help="of each rail (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    args = parser.parse_args()
    if cannot("lab.gpu.lines"):
        return 2
    args.out.mkdir(parents=True)
    counts = []
    for protocol in args.protocol or (*PROTOCOLS, FORCED):
        for network in args.network or get_args(Network):
            for flapping in (False, True) if network == "FABRIC" else (False,):
                out = args.out / f"{protocol}-{network}-{'flap' if flapping else 'calm'}"
                with Cluster(name="lines", hosts=2, rails=2, rate=args.rate) as lab:
                    outcome = run_job(
                        lab, out.resolve(), protocol, seconds=args.seconds, faults=flapping,
                        network=network, worker=loop,
                    )  # fmt: skip
                counts.append(count(outcome, network, protocol, args.seconds, flapping))
                print(counts[-1], flush=True)
    (args.out / "counts.json").write_text(json.dumps([asdict(one) for one in counts], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
