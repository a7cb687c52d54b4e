"""When did the steer page of each host change? ``python -m bench.detect.live_watch`` follows them.

A process of its own under SCHED_FIFO (below the prober, above everything that is measured), so that
what it sees is not late when both cores are busy. Every 200 µs it reads the header of each page; a
row is written for each generation that it has not seen. A row's time is right after the read, so a
change is dated up to 200 µs late and never early. A page is what plugins act upon: what is on it is
decided and published.

Reads one JSON object (host → page's path) from standard input, says ``ready``, ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fabricd.steer import page
from lab.cluster import Cluster
from lab.registry import LabError

POLL_S = 200e-6
PRIORITY = 45
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK, SIGKILL = 1, 29, 9
_HEAD = page.RAILS_AT


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


def follow(pages: dict[str, str], ended: Callable[[], bool]) -> None:
    """Print a row for each new generation of each page until ``ended``."""
    files = {host: os.open(path, os.O_RDONLY) for host, path in pages.items()}
    fields = page.offsets(page.HEADER)
    seq_at, generation_at = fields["seq"], fields["generation"]
    known = dict.fromkeys(files, b"")
    while not ended():
        for host, fd in files.items():
            head = os.pread(fd, _HEAD, 0)
            generation = head[generation_at : generation_at + 8]
            if generation == known[host] or head[seq_at] & 1:
                continue
            whole = os.pread(fd, page.PAGE_SIZE, 0)
            now = time.monotonic_ns()
            try:
                view = page.decode(whole)
            except page.PageError:
                continue  # Being written: the next round has it.
            known[host] = whole[generation_at : generation_at + 8]
            rails = [(r.netdev, r.state.name, r.weight) for r in view.rails]
            print(json.dumps((now, host, rails)), flush=True)
        time.sleep(POLL_S)


def main() -> None:
    """The process."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    pages = json.loads(sys.stdin.readline())
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    print("ready", flush=True)
    rounds = 0

    def ended() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds % 100 == 0 and bool(select.select([sys.stdin], [], [], 0)[0])

    follow(pages, ended)


if __name__ == "__main__":
    main()
