"""Run ``fabric-perf`` on every host of a lab and collect its JSON lines."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from lab.faults.truth import Row
from lab.lifecycle.registry import LabDir
from lab.node import Node, native_prefix

Collective = Literal["p2p", "ring", "alltoall"]


@dataclass(frozen=True, slots=True)
class Binaries:
    """The native parts of the build in use."""

    prober: Path
    plugin: Path
    perf: Path


class PerfHosts(Protocol):
    """What a job needs of a lab: `lab.cluster.Cluster` has it."""

    dir: LabDir
    nodes: list[Node]

    @property
    def binaries(self) -> Binaries: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank ended. ``end`` is its last row, empty when it did not get that far."""

    rank: int
    status: int
    end: Row
    errors: list[Row]


def pinned(cores: Sequence[int], rank: int) -> list[str]:
    """What starts a program on the core of its rank; nothing when ``cores`` is empty."""
    return ["taskset", "-c", str(cores[rank % len(cores)])] if cores else []


class Perf:
    """One job: a rank per host, in host order.

    ``plugin``: another one than ours. ``cores``: rank r runs on the r-th of them alone.
    """

    def __init__(
        self,
        cluster: PerfHosts,
        collective: Collective,
        args: Sequence[str],
        *,
        nodes: Sequence[Node] | None = None,
        env: Mapping[str, str] | None = None,
        name: str = "perf",
        plugin: Path | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        binaries = cluster.binaries
        self.nodes = list(nodes or cluster.nodes)
        self.dir = _new_dir(cluster.dir.root, name)
        (self.dir / "rendezvous").mkdir()
        self.started_ns = time.monotonic_ns()
        self.ranks: list[subprocess.Popen[Any]] = []
        for rank, node in enumerate(self.nodes):
            command = [*pinned(cores, rank), *native_prefix(), str(binaries.perf), collective]
            command += ["--plugin", str(plugin or binaries.plugin)]
            command += ["--rank", str(rank), "--world", str(len(self.nodes))]
            command += ["--rendezvous", f"file:{self.dir / 'rendezvous'}"]
            command += ["--jsonl", str(self.jsonl(rank)), *args]
            with self.log(rank).open("wb") as log:
                self.ranks.append(
                    node.popen(
                        command,
                        env={"NCCL_SOCKET_IFNAME": "rail", "FABRIC_JOB": name, **(env or {})},
                        stdout=log,
                        stderr=log,
                    )
                )

    def jsonl(self, rank: int) -> Path:
        """The rank's time series."""
        return self.dir / f"rank{rank}.jsonl"

    def log(self, rank: int) -> Path:
        """What the rank printed."""
        return self.dir / f"rank{rank}.log"

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(rank.poll() is None for rank in self.ranks)

    def rows(self, rank: int) -> list[Row]:
        """The rank's rows so far; a line that is still being written is left for later."""
        if not self.jsonl(rank).exists():
            return []
        text = self.jsonl(rank).read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]

    def wait_started(self, timeout_s: float = 20.0) -> None:
        """Until every rank has moved payload.

        Raises:
            TimeoutError: one has not.
            RuntimeError: one ended.
        """
        deadline = time.monotonic() + timeout_s
        waiting = set(range(len(self.ranks)))
        while waiting:
            for rank in sorted(waiting):
                if any(r["type"] == "sample" and r["bytes"] > 0 for r in self.rows(rank)):
                    waiting.discard(rank)
                elif self.ranks[rank].poll() is not None:
                    raise RuntimeError(f"rank {rank} ended: {self.log(rank).read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"ranks {sorted(waiting)} moved nothing in {timeout_s} s")
            time.sleep(0.02)

    def wait(self, timeout_s: float) -> list[RankResult]:
        """Until all ranks have ended.

        Raises:
            TimeoutError: one has not; all are killed then.
        """
        deadline = time.monotonic() + timeout_s
        try:
            for rank in self.ranks:
                rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            left = [i for i, rank in enumerate(self.ranks) if rank.poll() is None]
            self.kill()
            last = "; ".join(f"rank {i}: {self.rows(i)[-1:]}" for i in left)
            raise TimeoutError(f"fabric-perf did not end within {timeout_s} s: {last}") from None
        return [self._result(rank) for rank in range(len(self.ranks))]

    def _result(self, rank: int) -> RankResult:
        rows = self.rows(rank)
        ends = [r for r in rows if r["type"] == "end"]
        return RankResult(
            rank=rank,
            status=self.ranks[rank].returncode,
            end=ends[-1] if ends else {},
            errors=[r for r in rows if r["type"] == "error"],
        )

    def kill(self) -> None:
        """SIGKILL to all ranks."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


def _new_dir(root: Path, name: str) -> Path:
    number = 0
    while True:
        path = root / (name if number == 0 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
