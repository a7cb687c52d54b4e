"""Rails that go away for a moment under a ring all-reduce, one after the other, and the stalls.

A stall is what `bench.follow.stalls_ns` says it is, from the fault's time in the lab's ground truth
to what the plugin's stats pages tell; a fault counts with its slowest communicator, and none is
left out.
"""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.follow import MAX_RAILS, EventFollower, Progress, stalls_ns
from bench.report import percentile
from lab.cluster import Cluster, wait_until
from lab.demo.cpu import CpuWatch
from lab.demo.record import CpuSample
from lab.faults.catalog import Fault
from lab.node import Node
from lab.services.perf import Perf
from telemetry.statspage import StatsEventKind

FAULT_S = 0.7
GIVE_UP_S = 8.0
SETTLE_S = 1.0
SATURATING = ("--size", "16M")
"""Up to 4 MiB of each channel are under way: the links' queues are full all the time."""


@dataclass(frozen=True, slots=True)
class Outages:
    """What some faults did to a job."""

    worst_ms: list[float]
    """Of each fault: the stall of its slowest communicator."""
    communicators: float
    """How many each fault held up, on average."""
    lost: int
    """Events that the pages' rings had overwritten before they were read."""
    others: list[float] = field(default_factory=list)
    """Of each fault: the part of the CPU, 0 to 1, that processes outside the lab had meanwhile."""

    def note(self) -> str:
        """For a row."""
        worst = self.worst_ms
        note = f"{len(worst)} faults, p50 {percentile(worst, 0.5):.1f} ms, max {max(worst):.1f} ms"
        note += f"; {self.communicators:.1f} communicators each"
        if self.others:
            at_worst = self.others[worst.index(max(worst))]
            note += (
                f"; others had up to {max(self.others):.0%} of the CPU ({at_worst:.0%} at the max)"
            )
        return note + (f"; {self.lost} events lost" if self.lost else "")


def outages(cluster: Cluster, perf: Perf, make: Callable[[str], Fault], faults: int) -> Outages:
    """``faults`` in turn over all rails of all hosts."""
    hosts, rails = cluster.topology.hosts, cluster.topology.rails
    targets = itertools.cycle(
        f"h{host}:rail{(host + step) % rails}" for step in range(rails) for host in range(hosts)
    )
    worst_ms: list[float] = []
    others: list[float] = []
    met = 0
    progress = Progress(perf)
    watch = CpuWatch()
    with EventFollower(cluster) as follower:
        while len(worst_ms) < faults:
            before = watch.sample(pid for node in cluster.nodes for pid in node.pids())
            stalls = one_outage(cluster, progress, follower, make(next(targets)))
            after = watch.sample(pid for node in cluster.nodes for pid in node.pids())
            others.append(others_share(before, after))
            met += len(stalls)
            worst_ms.append(max(stalls) / 1e6)
        return Outages(worst_ms, met / faults, follower.lost, others)


def others_share(before: CpuSample, after: CpuSample) -> float:
    """The part of the CPU, 0 to 1, that processes outside of the lab had between two samples."""
    total = after.total - before.total
    busy = total - (after.idle - before.idle)
    return max(0.0, (busy - (after.own - before.own)) / total) if total > 0 else 0.0


def one_outage(
    cluster: Cluster, progress: Progress, follower: EventFollower, fault: Fault
) -> list[int]:
    """Nanoseconds until each communicator of the rail (in and out) sent payload again.

    Raises:
        TimeoutError: the job moves nothing while the rail is gone, or the rail does not return.
    """
    with cluster.inject(fault, FAULT_S):
        start = fault.started_ns
        time.sleep(FAULT_S / 2)
        moved = progress.moved()
        wait_until(
            lambda: progress.moved() > moved, GIVE_UP_S, f"payload without {fault.target_text}"
        )
        time.sleep(FAULT_S / 2 + 0.05)
    hosts = cluster.topology.hosts
    healthy = time.monotonic_ns()
    host, rail = (int(part) for part in re.findall(r"\d+", fault.target_text))

    def lost(at: str, path: int) -> bool:
        # Out of the host by that rail, or towards it from its neighbour in the ring.
        out, back = divmod(path, MAX_RAILS)
        return (at == f"h{host}" and out == rail) or (
            at == f"h{(host - 1) % hosts}" and back == rail
        )

    # The fault ends by itself: the rail may have returned while we still waited for the job.
    ended = start + round(FAULT_S * 1e9)
    wait_until(
        lambda: any(e.event.kind is StatsEventKind.PATH_UP for e in follower.since(ended)),
        GIVE_UP_S,
        f"the return of {fault.target_text}",
    )
    time.sleep(0.5)
    stalls = stalls_ns(follower.since(0), start, healthy, lost)
    if {host for host, _ in stalls} != {f"h{host}", f"h{(host - 1) % hosts}"}:
        raise RuntimeError(f"{fault.target_text}: one side never gave the path up: {stalls}")
    return list(stalls.values())


def links_up(cluster: Cluster) -> bool:
    """Whether the daemon of every host says UP of every link."""
    for node in cluster.nodes:
        try:
            body = node.fetch("http://127.0.0.1:19200/metrics")
        except OSError:
            return False
        up = re.findall(r"^fabricd_link_state\{[^}]*\} 1(?:\.0)?$", body, re.MULTILINE)
        if len(up) < cluster.topology.rails:
            return False
    return True


@contextmanager
def ring(
    cluster: Cluster,
    *,
    rails: int | None = None,
    name: str = "ring",
    env: Mapping[str, str] | None = None,
    load: Sequence[str] = SATURATING,
    nodes: Sequence[Node] | None = None,
) -> Iterator[Perf]:
    """A ring all-reduce over the first ``rails`` rails (default: all), until the block ends.

    ``load``: how much of it, in words of fabric-perf. ``nodes``: default all hosts.
    """
    rails = cluster.topology.rails if rails is None else rails
    devices = "=" + ",".join(f"rail{r}" for r in range(rails))
    perf = cluster.start_perf(
        "ring",
        *("--duration", "3600", "--channels", str(rails), *load),
        *("--wait", "block", "--interval-ms", "100"),
        nodes=nodes,
        env={"NCCL_SOCKET_IFNAME": devices} | dict(env or {}),
        name=name,
    )
    try:
        perf.wait_started()
        time.sleep(SETTLE_S)
        yield perf
    finally:
        for rank in perf.ranks:
            rank.send_signal(signal.SIGTERM)
        try:
            perf.wait(20)
        finally:
            perf.kill()
