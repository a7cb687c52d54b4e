"""One of four planes half loaded by strangers: weights that follow the latency beside fixed ones.

Hosts h0 and h2 are on one leaf of each rail, h1 and h3 on another, joined by a spine link of the
rails' own rate. h2 and h3 fill half of one rail's spine link, both ways, with UDP that does not
yield; the job runs between h0 and h1.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.follow import EventFollower, HostEvent, flow, mean_rate
from bench.outage import ring
from bench.plugin.rounds import alternate, beside, ratio
from bench.report import Row
from lab.cluster import Cluster
from lab.topology import Topology, parse_rate

RATE = "200mbit"
BUSY_RAIL = 1
PORT = 5301
LOAD = ("--size", "8M", "--verify", "none")
ADAPTING_S = 3.0
"""Weights change once a second at most: so long they have to find their way."""
WEIGHT_EVENT = "PATH_WEIGHT"
SECOND_NS = 990_000_000
"""What counts as a second between two changes: the plugin's clock and its event are not one."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One job beside the foreign load."""

    gbps: float
    changes: dict[tuple[str, int | None, int | None], list[tuple[int, int]]]
    """Of each path (host, rails): when its weight changed, and to what."""


def congestion(*, quick: bool) -> list[Row]:
    """Throughput with ``FABRIC_ADAPT=1`` and 0 beside the same foreign load."""
    return congestion_measured(1 if quick else 3, 6.0)


def congestion_measured(rounds: int, seconds: float) -> list[Row]:
    """The same, so many rounds of so many seconds each way."""
    rate_bps = parse_rate(RATE)
    topology = Topology("bench-congestion", hosts=4, rails=4, spines=0, rate_bps=rate_bps)
    with Cluster(topology=topology) as cluster:
        for rail in range(topology.rails):
            split_leaf(topology, rail)
        with foreign_load(cluster, rate_bps // 2):
            taken = alternate(
                rounds,
                {
                    "following": lambda: _job(cluster, "1", seconds),
                    "fixed": lambda: _job(cluster, "0", seconds),
                },
            )
    return congestion_rows(taken)


def congestion_rows(taken: dict[str, list[Taken]]) -> list[Row]:
    """The rows of `congestion` from its rounds. Pure."""
    gbps = {way: [job.gbps for job in jobs] for way, jobs in taken.items()}
    paths = [changes for job in taken["following"] for changes in job.changes.values()]
    most = [most_in_a_second(t for t, _ in changes) for changes in paths] or [0]
    turns = [reversals(weight for _, weight in changes) for changes in paths] or [0]
    note = f"{sum(map(len, paths))} changes on {len(paths)} paths in {len(gbps['following'])} jobs"
    return [
        Row(
            "one spine half loaded: throughput, weights that follow latency, part of fixed ones",
            1.2,
            ratio(gbps["following"], gbps["fixed"]),
            "",
            better="higher",
            note=beside(gbps, "Gbit/s"),
            samples=gbps,
        ),
        Row(
            "the same: changes of one path's weight within a second, most",
            1,
            max(most),
            "",
            note=f"{note}; turned about {max(turns)} times at most",
            samples={"most within a second": most, "turns": turns},
        ),
    ]


def most_in_a_second(times_ns: Iterable[int]) -> int:
    """The most changes that lie within one second of each other. Pure."""
    ordered = sorted(times_ns)
    return max(
        (sum(1 for u in ordered[i:] if u - t < SECOND_NS) for i, t in enumerate(ordered)), default=0
    )


def reversals(weights: Iterable[int]) -> int:
    """How often a weight that went one way went the other next. Pure."""
    values = list(weights)
    steps = [b - a for a, b in itertools.pairwise(values) if a != b]
    return sum(1 for a, b in itertools.pairwise(steps) if (a > 0) != (b > 0))


def split_leaf(topology: Topology, rail: int) -> None:
    """Two leaves out of one: odd hosts move to ``br1``, joined with ``br0`` by one shaped wire."""
    ns = topology.ns("leaf", rail)

    def tool(program: str, line: str) -> None:
        subprocess.run([program, "-n", ns, *line.split()], check=True)

    gso = f"gso_max_size {topology.gso_max_bytes}"
    tool("ip", "link add br1 type bridge stp_state 0")
    tool("ip", f"link add up0 {gso} type veth peer name up1 {gso}")
    for host in range(1, topology.hosts, 2):
        tool("ip", f"link set h{host} master br1")
    for end in (0, 1):
        tool("ip", f"link set up{end} master br{end} up")
        shape = f"rate {topology.rate_bps} burst {topology.burst_bytes}"
        tool("tc", f"qdisc add dev up{end} root tbf {shape} latency {topology.queue_us}us")
    tool("ip", "link set br1 up")


@contextmanager
def foreign_load(cluster: Cluster, rate_bps: int) -> Iterator[None]:
    """UDP of that rate each way between h2 and h3 over the busy rail, until the block ends."""
    client, server = cluster.nodes[2], cluster.nodes[3]
    address = server.address(BUSY_RAIL)
    listen = ["iperf3", "-s", "-B", address, "-p", str(PORT)]
    processes = [server.popen(listen, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    try:
        time.sleep(0.5)
        command = ["iperf3", "-c", address, "-B", client.address(BUSY_RAIL), "-p", str(PORT)]
        command += ["-u", "--bidir", "-b", str(rate_bps), "-t", "3600"]
        processes.append(
            client.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        time.sleep(1.0)
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("the foreign load ended at once")
        yield
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("the foreign load ended under way")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _job(cluster: Cluster, adapt: str, seconds: float) -> Taken:
    """Payload that both ranks accept once the weights had time, and all changes of weights."""
    env = {"FABRIC_ADAPT": adapt}
    with (
        EventFollower(cluster) as follower,
        ring(cluster, env=env, load=LOAD, nodes=cluster.nodes[:2]) as perf,
    ):
        time.sleep(ADAPTING_S)
        since = time.monotonic_ns()
        time.sleep(seconds)
        gbps = mean_rate(flow(cluster, perf), since, time.monotonic_ns()) * 8e-9
        events = follower.since(perf.started_ns)
    return Taken(gbps, weight_changes(events))


def weight_changes(
    events: Iterable[HostEvent],
) -> dict[tuple[str, int | None, int | None], list[tuple[int, int]]]:
    """Of each path (host, local and remote rail): times and weights, oldest first. Pure."""
    changes: dict[tuple[str, int | None, int | None], list[tuple[int, int]]] = defaultdict(list)
    for item in events:
        event = item.event
        if event.kind.name == WEIGHT_EVENT:
            path = (item.host, event.local_rail, event.remote_rail)
            changes[path].append((event.time_ns, event.detail))
    return dict(changes)
