"""Plays the second act: lab, broker, fabric-compute, job; then one strike after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from lab.cluster import Cluster
from lab.demo.run import DemoError
from lab.demo.story import DAMPING, HOLD
from lab.demo.training import shards
from lab.demo.training.sources import LineFile, Progress
from lab.demo.training.story import HOSTS, PACE_S, RAILS, RANKS, TOTAL, Strike, strikes
from lab.demo.watch import HostWatch, Watch
from lab.faults.catalog import Carrier, NodeFreeze, NodeKill
from lab.node import REPO
from lab.services.management import Management, TrainingJob, ledger_command
from lab.topology import Topology
from telemetry.events import Event

LOOP = Path(__file__).with_name("loop.py")
TICK_S = 0.1
START_S = END_S = 240.0
STRIKE_S = 120.0
UNPLUGGED_S = 3.0
FROZEN_S = 2.0
CALM_STEPS = 8
"""So many steps between two strikes."""


def topology(name: str, rate_bps: int) -> Topology:
    """Hosts for all ranks and a spare, and a management network."""
    return Topology(name=name, hosts=HOSTS, rails=RAILS, rate_bps=rate_bps, management=True)


@dataclass
class Act:
    """One run. ``show`` is called after each look; it may read everything here."""

    cluster: Cluster
    show: Callable[[Act], None]
    failover: bool = True
    strikes: list[Strike] = field(default_factory=strikes)
    phase: str = ""
    log: list[tuple[float, str]] = field(default_factory=list)
    """Seconds since the start, and what happened."""
    start_ns: int = field(default_factory=time.monotonic_ns)
    ranks: dict[int, str] = field(default_factory=dict)
    """Rank → host, as fabric-compute orders."""
    generation: int = 0
    weights: dict[int, str] = field(default_factory=dict)
    undisturbed: dict[int, str] = field(default_factory=dict)
    shards: shards.Shards = field(default_factory=shards.Shards)
    ledger: str = ""
    statuses: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out = self.cluster.dir.root / "training"
        self.out.mkdir(exist_ok=True)
        self.progress = Progress(self.out)
        self.watch = Watch([HostWatch(node, with_daemon=True) for node in self.cluster.nodes])
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._current: Strike | None = None
        self._job: TrainingJob
        self._management: Management
        self._compute: LineFile

    @property
    def died_of(self) -> str:
        """What the job died of, without failover; "": it has not died."""
        last = next((one for one in reversed(self.strikes) if one.start_ns), None)
        return f"of: {last.title} ({last.target})" if last and self._job_ended() else ""

    @property
    def now_s(self) -> float:
        """Seconds since the start of the act."""
        return (time.monotonic_ns() - self.start_ns) / 1e9

    def play(self) -> None:
        """Run everything; the cluster is up already and goes down after.

        Raises:
            DemoError: something did not start, or did not happen in time.
        """
        try:
            self._start()
            beside = self._start_undisturbed()
            for strike in self.strikes:
                self._strike(strike)
                if not self.failover and self._job_ended():
                    break
            (self.out / "fast").touch()
            self._finish(beside)
        finally:
            self.watch.close()

    # -- the start ---------------------------------------------------------------------------

    def _start(self) -> None:
        self._tell("starting broker, fabric-compute, and a prober and a daemon on each host")
        self._management = Management(self.cluster)
        self._management.start_broker()
        mode = "migrate" if self.failover else "observe"
        self._management.start_compute(mode=mode)
        self._compute = LineFile(self._management.dir / "c0.log")
        self.cluster.start_daemons(
            mode="migrate", broker=self._management.broker_table, hold=HOLD, damping=DAMPING
        )
        self._tell("starting a job of 4 ranks and a spare, over the plugin")
        self._start_job()
        self._until(lambda: len(self.progress.newest) == RANKS, START_S, "first step of all ranks")
        self._calm()

    def _start_job(self) -> None:
        plugin = self.cluster.binaries.plugin
        environment = {
            "PACE_S": str(PACE_S), "NCCL_SOCKET_IFNAME": "rail", "NCCL_NET_PLUGIN": str(plugin),
            "FABRIC_COLLECTIVES": str(plugin.with_name("libfabric-collectives.so")),
        }  # fmt: skip
        self._job = TrainingJob(
            self.cluster, LOOP, [str(self.out), str(TOTAL)], nodes=RANKS, spares=HOSTS - RANKS,
            options=["--backend", "plugin"], env=environment,
            of_host=lambda node: ["--standby", "1" if node.name == "h0" else "0"],
            env_of_host=lambda node: {"DEMO_HOST": node.name},
        )  # fmt: skip

    def _start_undisturbed(self) -> subprocess.Popen[Any]:
        """The same seed, with nothing done to it, on what the paced job leaves of the cores."""
        directory = self.out / "undisturbed"
        directory.mkdir()
        plugin = self.cluster.binaries.plugin
        environment = {
            **os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1",
            "NCCL_NET_PLUGIN": str(plugin),
            "FABRIC_COLLECTIVES": str(plugin.with_name("libfabric-collectives.so")),
        }  # fmt: skip
        command = [
            "nice", "-n", "19", sys.executable, "-m", "fabric_train.run", "--standalone",
            "--nproc-per-node", str(RANKS), "--spares", "0", "--backend", "plugin",
            str(LOOP), str(directory), str(TOTAL),
        ]  # fmt: skip
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=directory, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.cluster._closers.append(lambda: shards.end(process))  # noqa: SLF001
        return process

    # -- strikes -----------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        self._current = strike
        strike.start_ns = time.monotonic_ns()
        self._tell(f"{strike.title}: {strike.target}")
        {
            "NIC unplugged": self._unplug,
            "rank killed": self._kill_rank,
            "host frozen, then without power": self._lose_host,
            "host drained": self._drain,
        }[strike.title](strike)
        strike.end_ns = time.monotonic_ns()
        strike.longest_gap_ms = self.progress.longest_gap_ms(strike.start_ns, strike.end_ns)
        self._current = None
        if self.failover:
            self._calm()

    def _unplug(self, strike: Strike) -> None:
        with self.cluster.inject(Carrier(strike.target)):
            self._wait(UNPLUGGED_S)
        self._wait(1.0)

    def _kill_rank(self, strike: Strike) -> None:
        rank = next(rank for rank, host in self.ranks.items() if host == strike.target)
        os.kill(self.progress.newest[rank].pid, signal.SIGKILL)
        self._await_recovery(strike)

    def _lose_host(self, strike: Strike) -> None:
        node = self.cluster.nodes[int(strike.target[1:])]
        frozen = NodeFreeze(strike.target)
        with self.cluster.inject(frozen):
            self._await_recovery(strike)
            self._wait(FROZEN_S)
            with self.cluster.inject(NodeKill(strike.target)):
                self._tell(f"{strike.target} loses its power")
                self._wait(1.0)
        if self.failover:
            self._tell(f"{strike.target} is repaired; its fabric-run starts again, as a spare")
            self._job.start_on(node)

    def _drain(self, strike: Strike) -> None:
        config = str(self._management.dir / "c0.toml")
        subprocess.run(
            [sys.executable, "-m", "compute", "drain", strike.target, "--config", config],
            env={**os.environ, "PYTHONPATH": str(REPO)}, check=True, capture_output=True,
        )  # fmt: skip
        self._await_recovery(strike)

    def _await_recovery(self, strike: Strike) -> None:
        if not self.failover:
            self._until(self._job_ended, STRIKE_S, "the death of the job")
            return

        def committed() -> bool:
            if strike.running_ns is None:
                return False
            strike.committed_ns = self.progress.all_past(strike.start_ns, strike.generation, RANKS)
            return strike.committed_ns is not None

        self._until(committed, STRIKE_S, f"{strike.title}: a step of all ranks")

    def _calm(self) -> None:
        first = min(step.step for step in self.progress.newest.values())
        self._until(
            lambda: min(one.step for one in self.progress.newest.values()) >= first + CALM_STEPS,
            STRIKE_S, f"{CALM_STEPS} undisturbed steps",
        )  # fmt: skip

    # -- looking -----------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(TICK_S)

    def _until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            self._look()
            if time.monotonic() > deadline:
                raise DemoError(f"{what} did not happen within {timeout_s:g} s\n{self._tails()}")
            if self._job_ended() and self.failover:
                raise DemoError(f"the job has ended before {what}\n{self._tails()}")
            time.sleep(TICK_S / 2)

    def _job_ended(self) -> bool:
        return len(self._job.running) < RANKS

    def _look(self) -> None:
        self.progress.poll()
        events, _ = self.watch.poll()
        self.events += events
        for row in self._compute.new():
            self._hear(row)
        self.show(self)

    def _hear(self, row: dict[str, Any]) -> None:
        """One line of fabric-compute's log."""
        strike = self._current
        wall = datetime.fromisoformat(row.get("timestamp", "1970-01-01T00:00:00+00:00"))
        at_ns = int(wall.timestamp() * 1e9) - self._offset_ns
        kind, phase = row.get("event"), row.get("phase")
        if kind == "fence":
            self._tell(f"fence {row['host']}: {row['reason']}")
            if strike is not None:
                strike.decided_ns = strike.decided_ns or at_ns
        elif kind == "phase":
            number = int(row.get("generation", 0))
            if number > self.generation and phase == "proposed" and strike is not None:
                strike.decided_ns = strike.decided_ns or at_ns
                strike.fenced_ns = at_ns
            if phase == "running" and number > self.generation:
                self.generation = number
                if strike is not None:
                    strike.running_ns, strike.generation = at_ns, number
            if row.get("reason"):
                self._tell(f"fabric-compute: {phase}, generation {number}: {row['reason']}")
        elif kind == "recovery":
            self._note_recovery(row)
        self._place_ranks()

    def _note_recovery(self, row: dict[str, Any]) -> None:
        """fabric-compute has seen all ranks go on; the strike may be over by then."""
        for strike in self.strikes:
            if strike.generation and strike.generation == row.get("generation"):
                strike.steps_lost = int(row.get("steps_lost", 0))
                places = zip(row.get("ranks", ()), row.get("to", ()), strict=False)
                strike.moved = ", ".join(f"rank {rank} → {host}" for rank, host in places)

    def _place_ranks(self) -> None:
        for rank, step in self.progress.newest.items():
            self.ranks[rank] = step.host

    def _tell(self, text: str) -> None:
        if not self.log or self.log[-1][1] != text:
            self.log.append((self.now_s, text))
        self.phase = text

    # -- the end -----------------------------------------------------------------------------

    def _finish(self, beside: subprocess.Popen[Any]) -> None:
        if not self.failover:
            return
        self._tell("the rest of the steps, without pauses")
        deadline = time.monotonic() + END_S
        while self._job.running and time.monotonic() < deadline:
            self._look()
            time.sleep(TICK_S)
        self._look()
        try:
            self.statuses = self._job.wait(1.0)
        except TimeoutError as error:
            raise DemoError(f"{error}\n{self._tails()}") from None
        self._tell("waiting for the undisturbed run")
        os.setpriority(os.PRIO_PGRP, beside.pid, 0)  # nothing else needs the cores any more
        try:
            beside.wait(STRIKE_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the undisturbed run has not ended in {STRIKE_S:g} s") from None
        for rank in range(RANKS):
            self.weights[rank] = _text(self.out / f"weights.{rank}")
            self.undisturbed[rank] = _text(self.out / "undisturbed" / f"weights.{rank}")
        self.ledger = ledger_command(self._management, "verify").strip()
        self.shards = shards.play(self.out / "shards", self._tell, lambda: self.show(self))

    def _tails(self) -> str:
        paths = [*(self._job.log(node) for node in self._job.hosts),
                 self._management.dir / "c0.log"]  # fmt: skip
        return "\n".join(f"{path.name}: {_text(path)[-1500:]}" for path in paths)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
