"""Follows the stats pages of all hosts of a lab from a thread, and the job's throughput."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from lab.cluster import Cluster
from lab.demo.job import RankReader
from lab.demo.speed import Throughput, throughput
from lab.services.perf import Perf
from telemetry.statsdir import StatsDirectory
from telemetry.statspage import StatsEvent, StatsEventKind

POLL_S = 0.1
"""The ring of a page holds 512 events; reading oftener only takes time from the job."""
MAX_RAILS = 8
"""The plugin numbers a path: sender's rail × 8 + receiver's."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An event and the host whose process wrote it."""

    host: str
    event: StatsEvent


class EventFollower:
    """Collects events of every process of every host while it is open."""

    def __init__(self, cluster: Cluster) -> None:
        self._dirs = {n.name: StatsDirectory(n.run_dir / "stats") for n in cluster.nodes}
        self._events: list[HostEvent] = []
        self.lost = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stats pages")

    def __enter__(self) -> EventFollower:
        self._look()
        self.lost = 0  # what pages had lost before
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        now = time.monotonic_ns()
        for host, directory in self._dirs.items():
            for page in directory.scan(now):
                batch = directory.new_events(page)
                with self._lock:
                    self.lost += batch.lost
                    self._events += [HostEvent(host, event) for event in batch.events]

    def since(self, t_ns: int) -> list[HostEvent]:
        """Events at or after ``t_ns`` (CLOCK_MONOTONIC), oldest first."""
        with self._lock:
            found = [e for e in self._events if e.event.time_ns >= t_ns]
        return sorted(found, key=lambda e: e.event.time_ns)


def stalls_ns(
    events: Iterable[HostEvent], start_ns: int, end_ns: int, lost: Callable[[str, int], bool]
) -> dict[tuple[str, int], int]:
    """How long a fault held up each communicator whose path it took, at its sending end.

    ``events``: of the whole job so far, in any order. ``start_ns``, ``end_ns``: the fault, on
    CLOCK_MONOTONIC. ``lost(host, path)``: whether it took that path of the host (sender's rail × 8
    + receiver's). Keys are (host, comm); values count from ``start_ns`` to the first payload byte
    on a survivor; for one that had nothing left to send, to the answer of the fence, by which its
    messages are known to have arrived. One that had neither when the fault ended counts until then.
    Pass events until well after the end: who sends is known by what it does then at the latest.
    """
    ordered = sorted(events, key=lambda item: item.event.time_ns)
    senders = {  # a receiving end gives paths up as well, but asks for no fence
        (item.host, item.event.comm)
        for item in ordered
        if item.event.kind in (StatsEventKind.FENCE_DONE, StatsEventKind.FIRST_BYTE)
    }
    answered: dict[tuple[str, int], int] = {}
    out: dict[tuple[str, int], int] = {}
    for item in ordered:
        event, key = item.event, (item.host, item.event.comm)
        if event.time_ns < start_ns or key not in senders or key in out:
            continue
        if event.kind is StatsEventKind.FIRST_BYTE:
            path = event.detail
        elif event.local_rail is None or event.remote_rail is None:
            continue
        else:
            path = event.local_rail * MAX_RAILS + event.remote_rail
        if not lost(item.host, path):
            continue
        if event.kind is StatsEventKind.PATH_DOWN:
            if answered.setdefault(key, end_ns) < end_ns:
                out[key] = answered[key] - start_ns  # given up a second time: another stall
        elif key in answered and event.kind is StatsEventKind.FENCE_DONE and not event.detail:
            answered[key] = min(answered[key], event.time_ns)
        elif key in answered and event.kind is StatsEventKind.FIRST_BYTE:
            out[key] = event.time_ns - start_ns
    return {key: t_ns - start_ns for key, t_ns in answered.items()} | out


def flow(cluster: Cluster, perf: Perf) -> Throughput:
    """Throughput of the job so far, payload accepted by all ranks, in bins of 0.1 s."""
    rails = tuple(f"rail{r}" for r in range(cluster.topology.rails))
    series = []
    for rank, node in enumerate(perf.nodes):
        reader = RankReader(node.name, perf.jsonl(rank))
        reader.poll()
        series.append(reader.series(rails))
    return throughput(series)


class Progress:
    """Payload accepted by all ranks of a job, read as it is written."""

    def __init__(self, perf: Perf) -> None:
        self._readers = [RankReader(n.name, perf.jsonl(r)) for r, n in enumerate(perf.nodes)]
        self._bytes = 0

    def moved(self) -> int:
        """Bytes so far."""
        for reader in self._readers:
            for row in reader.poll():
                self._bytes += sum(int(rail["rx"]) for rail in row["rails"].values())
        return self._bytes


def mean_rate(measured: Throughput, from_ns: int, to_ns: int) -> float:
    """Mean byte/s over the bins that lie wholly inside the span.

    Raises:
        ValueError: no bin does.
    """
    edges = measured.edges_ns
    inside = (edges[:-1] >= from_ns) & (edges[1:] <= to_ns)
    if not inside.any():
        raise ValueError(f"no samples in {(to_ns - from_ns) / 1e9:.1f} s")
    return float(np.mean(measured.total[inside]))
