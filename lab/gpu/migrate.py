"""``python -m lab.gpu.migrate``: NCCL on one GPU, two ranks and a spare; a rank dies, none is lost.

Collectives go over our network plugin on loopback; each process has an ``NCCL_HOSTID`` of its own.
The state of each rank after a disturbed run has to be that of the undisturbed one, bit by bit.
Exit status: 0 they are, 1 not, 2 this machine cannot run it (the reason is printed).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.gpu.machine import cannot, plugin
from lab.node import REPO

WORLD = 2
FAULTS = ("1:20:forward", "0:33:backward", "1:47:gate")
TIMEOUT_S = 150.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """One loss: from the process's end to the next step that all ranks have applied."""

    ranks: tuple[int, ...]
    step: int
    pause_ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """One job: the SHA-256 of each rank's state, a step's time, what was recovered."""

    states: tuple[str, ...]
    step_ms: float
    recoveries: tuple[Recovery, ...]


def play(directory: Path, *, steps: int, faults: tuple[str, ...], spares: int) -> Run:
    """One job. Raises ``RuntimeError`` with the end of its output where it failed."""
    directory.mkdir(parents=True)
    records = directory / "records.json"
    command = [sys.executable, "-m", "fabric_train.run", "--standalone", "--backend", "nccl"]
    command += ["--nproc-per-node", str(WORLD), "--spares", str(spares), "--records", str(records)]
    command += [str(Path(__file__).with_name("train.py")), str(steps), str(directory)]
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    more = {
        "PYTHONPATH": path, "FABRIC_GPU_DIE": ",".join(faults), "NCCL_NET": "FABRIC",
        "NCCL_NET_PLUGIN": str(plugin()), "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET", "FABRIC_RUN_DIR": str(directory),
    }  # fmt: skip
    log = directory / "log"
    with log.open("wb") as out:
        status = subprocess.run(
            command, env=os.environ | more, stdout=out, stderr=out, check=False, timeout=TIMEOUT_S
        ).returncode
    text = log.read_text(errors="replace")
    if status != 0 or "Using network FABRIC" not in text:
        raise RuntimeError(f"fabric-run: exit status {status}:\n{text[-4000:]}")
    ends = [(directory / f"weights.{rank}").read_text().split() for rank in range(WORLD)]
    return Run(
        tuple(state for state, _ in ends), max(float(ms) for _, ms in ends),
        tuple(
            Recovery(
                tuple(row["ranks"]), row["step"],
                round((row["committed_at"] - row["lost_at"]) * 1000, 1),
            )
            for row in json.loads(records.read_text())
        ),
    )  # fmt: skip


def main() -> int:
    """An undisturbed job, and one in which ranks die."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    args = parser.parse_args()
    if cannot("lab.gpu.migrate"):
        return 2
    out = args.out.resolve()
    reference = play(out / "undisturbed", steps=args.steps, faults=(), spares=0)
    disturbed = play(out / "disturbed", steps=args.steps, faults=FAULTS, spares=1)
    same = reference.states == disturbed.states and len(disturbed.recoveries) == len(FAULTS)
    found = {"same": same, "undisturbed": asdict(reference), "disturbed": asdict(disturbed)}
    (out / "migrate.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=1))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
