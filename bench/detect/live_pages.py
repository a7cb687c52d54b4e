"""What the steer pages of a lab's hosts said, and when: rows of `bench.detect.live_watch`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.cluster import Cluster
from lab.lifecycle.registry import LabError


@dataclass(frozen=True, slots=True)
class Seen:
    """One rail of one host's page, as it was first seen."""

    t_ns: int
    """CLOCK_MONOTONIC."""
    host: str
    netdev: str
    state: str
    """Name of a LinkState."""
    weight: int


class PageWatch:
    """The rows so far; a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._pages = {node.name: str(node.run_dir / "steer") for node in cluster.nodes}
        self._rows: list[Seen] = []
        self._now: dict[tuple[str, str], Seen] = {}
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, name="page-watch", daemon=True)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.detect.live_watch"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._pages) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "ready\n":
            raise LabError(f"the page watcher did not start (exit {self._process.wait()})")
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def state(self, host: str, netdev: str) -> str:
        """The state that the page says now; empty: none yet."""
        with self._changed:
            seen = self._now.get((host, netdev))
            return seen.state if seen else ""

    def first(
        self, host: str, netdev: str, states: frozenset[str], since_ns: int, timeout_s: float
    ) -> Seen | None:
        """The first change of that rail into one of the states at or after a moment.

        Returns None when there was none within ``timeout_s`` of now.
        """

        def found() -> Seen | None:
            return next(
                (
                    row
                    for row in self._rows
                    if row.t_ns >= since_ns
                    and (row.host, row.netdev) == (host, netdev)
                    and row.state in states
                ),
                None,
            )

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, timeout_s)
            return found()

    def rows(self, since_ns: int = 0) -> list[Seen]:
        """All changes from a moment on."""
        with self._changed:
            return [row for row in self._rows if row.t_ns >= since_ns]

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            t_ns, host, rails = json.loads(line)
            with self._changed:
                for netdev, state, weight in rails:
                    row = Seen(t_ns, host, netdev, state, weight)
                    old = self._now.get((host, netdev))
                    if old is None or (old.state, old.weight) != (state, weight):
                        self._now[host, netdev] = row
                        self._rows.append(row)
                self._changed.notify_all()
