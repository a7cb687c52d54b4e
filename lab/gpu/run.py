"""Runs NCCL's collectives with and without faults underneath, and compares every bit.

Two hosts of a lab (network namespaces, two rails) on one machine, a rank in each, both on one GPU.
For each protocol: a run without faults, then the same with a rail that flaps, and once both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.cluster import Cluster
from lab.faults.flap import Flap
from lab.gpu.compare import Row, Verdict, compare
from lab.gpu.machine import plugin
from lab.gpu.plan import WORLD, Network, environment
from telemetry.statsdir import StatsDirectory

ROUNDS = 3
PERIOD_MS = 900.0
"""Down for the first third: longer than it takes to notice, and trusted again before the next."""
START_S = 180.0
"""Until both ranks are ready: CUDA and NCCL start, every pair connects, the first round."""
END_S = 300.0
"""After the faults have ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: rows of each rank, how each ended, and what was seen underneath."""

    rows: tuple[tuple[Row, ...], ...]
    statuses: tuple[int, ...]
    flaps: int
    failovers: int
    through_plugin: bool


@dataclass(frozen=True, slots=True)
class Report:
    """One protocol."""

    protocol: str
    verdict: Verdict
    rounds: int
    flaps: int
    failovers: int

    @property
    def ok(self) -> bool:
        """Same bits, and a run that was disturbed indeed."""
        return not self.verdict.wrong


WorkerCommand = Callable[[], Sequence[str]]


def torch_worker() -> list[str]:
    """The rank's program."""
    return [sys.executable, "-m", "lab.gpu.worker"]


def read_rows(path: Path) -> tuple[Row, ...]:
    """Whole lines of a worker's file."""
    text = path.read_text() if path.exists() else ""
    return tuple(json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())


def run_job(
    lab: Cluster,
    out: Path,
    protocol: str,
    *,
    seconds: float,
    faults: bool,
    network: Network = "FABRIC",
    worker: WorkerCommand = torch_worker,
    uses_plugin: Callable[[str], bool] = lambda log: "NET/Fabric" in log,
) -> Outcome:
    """Both ranks, from start to end.

    Args:
        lab: up, with two hosts and two rails.
        protocol: NCCL's: Simple, LL or LL128.
        out: a new directory; rows, logs and rendezvous lie there and stay.
        seconds: how long rounds are repeated, once the first has ended.
        faults: rail 1 of host 0 flaps all that time, rail 0 of host 1 in its second half.
        network: our plugin, or NCCL's own TCP.
        worker: what each rank runs; another one in tests.
        uses_plugin: does a rank's log prove that the plugin carried it?

    Raises:
        RuntimeError: a rank ended before it was ready.
        TimeoutError: one was not ready, or did not end.
    """
    out.mkdir(parents=True)
    files = [out / f"rank{rank}.jsonl" for rank in range(WORLD)]
    logs = [out / f"rank{rank}.log" for rank in range(WORLD)]
    go = out / "go"
    failovers = 0
    with ExitStack() as stack:
        ranks: list[subprocess.Popen[bytes]] = []
        for rank, node in enumerate(lab.nodes[:WORLD]):
            command = [*worker(), "--rank", str(rank), "--store", str(out / "store")]
            command += ["--go", str(go), "--out", str(files[rank])]
            command += ["--rounds", str(ROUNDS), "--seconds", str(seconds)]
            log = stack.enter_context(logs[rank].open("wb"))
            env = environment(
                rank=rank,
                protocol=protocol,
                plugin=plugin(),
                job=f"gpu-{protocol}",
                network=network,
            )
            process = node.popen(command, env=env, stdout=log, stderr=log)
            stack.callback(_end, process)
            ranks.append(process)
        _wait(ranks, logs, START_S, "ready", lambda: all(map(_ready, files)))
        flaps: list[Flap] = []
        if faults:
            count = max(1, int(seconds * 1000 / PERIOD_MS))
            flaps.append(Flap("h0:rail1", PERIOD_MS, count, duty=1 / 3))
            stack.enter_context(lab.inject(flaps[0]))
        go.touch()
        half = time.monotonic() + seconds / 2
        pages = [StatsDirectory(node.run_dir / "stats") for node in lab.nodes[:WORLD]]

        def over() -> bool:
            nonlocal failovers
            failovers = max(failovers, _failovers(pages))
            if faults and len(flaps) == 1 and time.monotonic() > half:
                flaps.append(Flap("h1:rail0", PERIOD_MS, max(1, count // 2), duty=1 / 3))
                stack.enter_context(lab.inject(flaps[1]))
            return all(process.poll() is not None for process in ranks)

        _wait(ranks, logs, seconds + END_S, "at its end", over)
    went = sum(1 for row in lab.truth() if row.get("fault") == "flap" and row["phase"] == "down")
    return Outcome(
        rows=tuple(read_rows(path) for path in files),
        statuses=tuple(process.returncode for process in ranks),
        flaps=went if faults else 0,
        failovers=failovers,
        through_plugin=all(uses_plugin(path.read_text(errors="replace")) for path in logs),
    )


def _ready(path: Path) -> bool:
    return any(row["type"] == "ready" for row in read_rows(path))


def _failovers(pages: Sequence[StatsDirectory]) -> int:
    now = time.monotonic_ns()
    return sum(
        rail.failovers
        for directory in pages
        for process in directory.scan(now)
        for rail in process.page.rails
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]],
    logs: Sequence[Path],
    seconds: float,
    what: str,
    condition: Callable[[], bool],
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        for rank, process in enumerate(ranks):
            if what == "ready" and process.poll() is not None:
                last = logs[rank].read_text(errors="replace")[-2000:]
                raise RuntimeError(f"rank {rank} ended before it was ready:\n{last}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"a rank was not {what} after {seconds:.0f} s; its log: {logs[0]}")
        time.sleep(0.05)


def judge(protocol: str, reference: Outcome, disturbed: Outcome) -> Report:
    """Bits, and whether the disturbed run was disturbed: else it would prove nothing."""
    verdict = compare(reference.rows, disturbed.rows, rounds=ROUNDS)
    wrong = list(verdict.wrong)
    for name, outcome in (("reference", reference), ("disturbed", disturbed)):
        wrong += [
            f"{name}, rank {rank}: exit status {status}"
            for rank, status in enumerate(outcome.statuses)
            if status != 0
        ]
        if not outcome.through_plugin:
            wrong.append(f"{name}: NCCL did not use the plugin (see its log)")
    if disturbed.flaps == 0:
        wrong.append("disturbed: no rail went down")
    if disturbed.failovers == 0:
        wrong.append("disturbed: no traffic was moved off a path")
    ends = [row for row in disturbed.rows[0] if row.get("type") == "end"]
    rounds = ends[0]["rounds"] if ends else 0
    assert isinstance(rounds, int)
    return Report(
        protocol,
        Verdict(verdict.compared, tuple(wrong)),
        rounds,
        disturbed.flaps,
        disturbed.failovers,
    )


def run_protocol(lab: Cluster, out: Path, protocol: str, seconds: float) -> Report:
    """A run without faults, one with, and the verdict; both keep their output in ``out``."""
    lab_truth = lab.dir.truth
    reference = run_job(lab, out / "reference", protocol, seconds=0.0, faults=False)
    disturbed = run_job(lab, out / "disturbed", protocol, seconds=seconds, faults=True)
    (out / "truth.jsonl").write_text(lab_truth.read_text() if lab_truth.exists() else "")
    report = judge(protocol, reference, disturbed)
    (out / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report
