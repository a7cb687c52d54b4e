"""The management network of a lab: a real mosquitto, one or two fabric-computes, and jobs.

Broker and fabric-computes run in the lab's management namespace, as on a management host; each
host's fabricd and fabric-run reach them over ``mgmt0``. The lab needs ``Topology.management``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.cluster import Cluster, wait_until
from lab.lifecycle.registry import LabError
from lab.network import netns
from lab.node import REPO, Node
from lab.services import host_config
from lab.services.service import Service
from lab.topology import MANAGEMENT

BROKER_PORT = 1883
START_S = 30.0


class Management:
    """Broker and fabric-computes of ``cluster``; all end with it."""

    def __init__(self, cluster: Cluster) -> None:
        if not cluster.topology.management:
            raise LabError("this lab has no management network: Topology(management=True)")
        self.cluster = cluster
        self.ns = cluster.topology.ns("management", 0)
        self.address = cluster.topology.management4()
        self.dir = cluster.dir.root / "management"
        self.dir.mkdir(exist_ok=True)
        self.broker: Service | None = None
        self.computes: dict[str, Service] = {}
        cluster._closers.append(self.stop)  # noqa: SLF001

    @property
    def broker_table(self) -> dict[str, Any]:
        """``[broker]`` of fabricd.toml and compute.toml."""
        return {"host": self.address, "port": BROKER_PORT, "keepalive_s": 2}

    def start_broker(self) -> None:
        """Start mosquitto and wait until it accepts connections."""
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise LabError("mosquitto is missing: ./run installs it")
        config = self.dir / "mosquitto.conf"
        config.write_text(
            f"listener {BROKER_PORT} {self.address}\nallow_anonymous true\nuser root\n"
            f"persistence true\npersistence_location {self.dir}/\nautosave_interval 1\n"
            "autosave_on_changes true\nmax_queued_messages 0\n"
        )
        self.broker = self._service("mosquitto", [program, "-c", str(config)])
        self.broker.start()
        wait_until(self._answers, START_S, "the broker's start")

    def start_compute(
        self, name: str = "c0", *, mode: str = "migrate", **tables: Mapping[str, Any]
    ) -> Service:
        """Start a fabric-compute; ``tables`` are further ones of compute.toml."""
        state = self.dir / name
        state.mkdir(exist_ok=True)
        (state / "mode").write_text(f"{mode}\n")
        tree: dict[str, Any] = {
            "name": name,
            "state_dir": str(state),
            "stop_file": str(self.dir / "STOP"),
            "broker": self.broker_table,
            "metrics": {"listen": f"{self.address}:{19201 + len(self.computes)}"},
            # Faults of a lab come much faster than in life.
            "policy": {"formation_wait_s": 20, "budget_least": 64, "budget_most": 64},
        }
        config = self.dir / f"{name}.toml"
        config.write_text(host_config.to_toml(host_config.merge(tree, tables)))
        args = ["nice", "-n", "-5", sys.executable, "-m", "compute", "run"]
        service = self._service(name, [*args, "--config", str(config), "--log-format", "json"])
        self.computes[name] = service
        service.start()
        return service

    def _service(self, name: str, args: list[str]) -> Service:
        return Service(
            self.ns, f"management {name}", args,
            env={**os.environ, "PYTHONPATH": str(REPO)}, log=self.dir / f"{name}.log",
            pid_dir=self.cluster.dir.pids, restart=True, forbidden=lambda: False,
        )  # fmt: skip

    def _answers(self) -> bool:
        def connect() -> bool:
            try:
                socket.create_connection((self.address, BROKER_PORT), 1).close()
            except OSError:
                return False
            return True

        return netns.run_in(self.ns, connect)

    def stop(self) -> None:
        """End all of it."""
        for service in (*self.computes.values(), self.broker):
            if service is not None:
                service.stop()


class TrainingJob:
    """fabric-run on several hosts. Output of host ``i`` is in ``log(i)``."""

    def __init__(
        self,
        cluster: Cluster,
        script: Path,
        args: Sequence[str],
        *,
        nodes: int,
        spares: int,
        name: str = "gpt",
        ranks_per_host: int = 1,
        hosts: Sequence[Node] | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        of_host: Callable[[Node], Sequence[str]] = lambda _: (),
        env_of_host: Callable[[Node], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """Start it. ``of_host`` and ``env_of_host``: further options and variables of one host."""
        self.name, self.nodes, self.spares = name, nodes, spares
        self.hosts = list(hosts or cluster.nodes[: nodes + spares])
        self.dir = cluster.dir.root / f"job-{name}"
        self.dir.mkdir(exist_ok=True)
        self._command = [
            sys.executable, "-m", "fabric_train.run", "--job", name, "--nodes", str(nodes),
            "--spares", str(spares), "--nproc-per-node", str(ranks_per_host),
            "--interface", MANAGEMENT, *options,
        ]  # fmt: skip
        self._script = [str(script), *args]
        self._env = {"OMP_NUM_THREADS": "1", **(env or {})}
        self._of_host, self._env_of_host = of_host, env_of_host
        self._runs: dict[str, subprocess.Popen[Any]] = {}
        for node in self.hosts:
            self.start_on(node)
        cluster._closers.append(self.kill)  # noqa: SLF001

    def start_on(self, node: Node) -> None:
        """Start (again) fabric-run on one host, once its fabricd is ready."""
        wait_until((node.run_dir / "jobs.sock").exists, START_S, f"{node.name}: fabricd's start")
        records = ["--records", str(self.dir / f"{node.name}.records.json")]
        with self.log(node).open("ab") as log:
            self._runs[node.name] = node.popen(
                [*self._command, *self._of_host(node), *records, *self._script],
                env={**self._env, **self._env_of_host(node)}, cwd=self.dir, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self, node: Node) -> Path:
        """What fabric-run and its ranks printed there."""
        return self.dir / f"{node.name}.log"

    def wait(self, timeout_s: float, *, but: Sequence[str] = ()) -> dict[str, int]:
        """Until fabric-run has ended on all hosts except ``but``: exit status by host.

        Raises:
            TimeoutError: one has not.
        """
        deadline = time.monotonic() + timeout_s
        statuses = {}
        for name, run in self._runs.items():
            if name in but:
                continue
            try:
                statuses[name] = run.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"fabric-run on {name} has not ended in {timeout_s} s") from None
        return statuses

    def run_of(self, host: str) -> subprocess.Popen[Any]:
        """The fabric-run of a host that was started last."""
        return self._runs[host]

    @property
    def running(self) -> list[str]:
        """Hosts whose fabric-run has not ended."""
        return [name for name, run in self._runs.items() if run.poll() is None]

    def kill(self) -> None:
        """SIGKILL to what still runs; ranks end with it."""
        for run in self._runs.values():
            if run.poll() is None:
                run.kill()
            run.wait()


def ledger_command(management: Management, *words: str, name: str = "c0") -> str:
    """Output of ``fabric-compute ledger WORDS`` for the fabric-compute ``name``.

    Raises:
        subprocess.CalledProcessError: its exit status is not 0.
    """
    config = management.dir / f"{name}.toml"
    done = subprocess.run(
        [sys.executable, "-m", "compute", "ledger", *words, "--config", str(config)],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    return done.stdout
