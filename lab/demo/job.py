"""The job: one fabric-perf rank per host, and reading what the ranks write while they run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.cluster import Cluster
from lab.demo.record import RankEnd, RankSeries
from lab.services.perf import Perf

INTERVAL_MS = 100
SIZE = "4M"
"""Bytes of one all-reduce: several within a bin of the analysis, so that the pause in which each is
verified does not look like a dip."""


@dataclass(slots=True)
class RankReader:
    """Follows the JSONL file of one rank. Rows that are not whole yet are left for later."""

    host: str
    path: Path
    samples: list[dict[str, Any]] = field(default_factory=list)
    start_row: dict[str, Any] | None = None
    end_row: dict[str, Any] | None = None
    error_row: dict[str, Any] | None = None
    _rest: bytes = b""
    _at: int = 0

    def poll(self) -> list[dict[str, Any]]:
        """Read what was appended; the new sample rows."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        new: list[dict[str, Any]] = []
        for line in lines:
            row = json.loads(line)
            match row.get("type"):
                case "sample":
                    new.append(row)
                case "start":
                    self.start_row = row
                case "end":
                    self.end_row = row
                case "error":
                    self.error_row = self.error_row or row
        if not self.samples:
            # The run begins with the first payload, not with the setting up of connections.
            moved = next((i for i, row in enumerate(new) if int(row["bytes"]) > 0), len(new))
            new = new[moved:]
        self.samples += new
        return new

    @property
    def moving(self) -> bool:
        """Whether payload has moved."""
        return bool(self.samples) and int(self.samples[-1]["bytes"]) > 0

    @property
    def first_ns(self) -> int:
        """When the first sample's interval began."""
        return int(self.samples[0]["t_ns"]) - INTERVAL_MS * 10**6 if self.samples else 0

    @property
    def last_ns(self) -> int:
        """When the last sample's interval ended; before the first one, when that began."""
        return int(self.samples[-1]["t_ns"]) if self.samples else self.first_ns

    @property
    def last_seconds(self) -> float:
        """How long the last sample's interval was."""
        before = int(self.samples[-2]["t_ns"]) if len(self.samples) > 1 else self.first_ns
        return max(1e-3, (self.last_ns - before) / 1e9)

    def series(self, rails: tuple[str, ...]) -> RankSeries:
        """All samples as arrays."""
        rows = self.samples
        edges = np.array([self.first_ns, *(int(row["t_ns"]) for row in rows)], dtype=np.int64)

        def bytes_of(direction: str) -> list[list[float]]:
            return [
                [float(row["rails"].get(rail, {}).get(direction, 0)) for rail in rails]
                for row in rows
            ]

        shape = (len(rows), len(rails))
        return RankSeries(
            host=self.host,
            rails=rails,
            t_ns=edges,
            rx=np.array(bytes_of("rx"), dtype=np.float64).reshape(shape),
            tx=np.array(bytes_of("tx"), dtype=np.float64).reshape(shape),
        )


class Job:
    """The ranks of one ring all-reduce, one on each host of the cluster."""

    def __init__(self, cluster: Cluster, seconds: float, *, failover: bool = True) -> None:
        """Start all ranks."""
        args = [
            "--size",
            SIZE,
            "--duration",
            f"{seconds:g}",
            "--channels",
            str(cluster.topology.rails),
        ]
        args += ["--wait", "block", "--verify", "full", "--interval-ms", str(INTERVAL_MS)]
        env = {"FABRIC_FAILOVER": str(int(failover))}
        self._perf = Perf(cluster, "ring", args, env=env, name="demo")
        self.readers = [
            RankReader(node.name, self._perf.jsonl(rank)) for rank, node in enumerate(cluster.nodes)
        ]

    @property
    def pids(self) -> list[int]:
        """Of all ranks, ended ones included."""
        return [rank.pid for rank in self._perf.ranks]

    @property
    def running(self) -> int:
        """Ranks that have not ended."""
        return sum(rank.poll() is None for rank in self._perf.ranks)

    def stop(self, grace_s: float = 2.0) -> None:
        """End what still runs: SIGTERM, then SIGKILL."""
        for rank in self._perf.ranks:
            if rank.poll() is None:
                rank.terminate()
        deadline = time.monotonic() + grace_s
        for rank in self._perf.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
        self._perf.kill()

    def ends(self) -> list[RankEnd]:
        """How each rank ended; a status below 0 is the signal that ended it."""
        return [
            RankEnd(reader.host, process.poll(), reader.end_row, reader.error_row)
            for reader, process in zip(self.readers, self._perf.ranks, strict=True)
        ]

    def log_tail(self, lines: int = 3) -> list[str]:
        """The last lines of each rank's output, for a failure nobody explained."""
        out = []
        for rank, reader in enumerate(self.readers):
            text = self._perf.log(rank).read_text(errors="replace").splitlines()[-lines:]
            out += [f"{reader.host}: {line}" for line in text]
        return out
