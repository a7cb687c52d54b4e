"""One of four rails much slower than the others: the job beside the same with that rail removed.

Two hosts, four rails, a ring over four channels. h1's rail2 runs at a quarter or a tenth of its
rate, both ways, as after a link that came back at a lower speed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.follow import flow, mean_rate
from bench.outage import ring
from bench.plugin.rounds import alternate, beside, ratio
from bench.report import Row
from lab.cluster import Cluster
from lab.faults.catalog import Carrier
from lab.topology import Topology, parse_rate

RATE = "200mbit"
SLOW_HOST, SLOW_RAIL = 1, 2
LOAD = ("--size", "8M", "--verify", "none")
SETTLING_S = 6.0
"""Two steps of a second until a path counts as slow, and what is under way on it."""


def slow(*, quick: bool) -> list[Row]:
    """Throughput with a slow rail, part of that without the rail."""
    return slow_measured(1 if quick else 3, 8.0)


def slow_measured(rounds: int, seconds: float) -> list[Row]:
    """The same, so many rounds of so many seconds each way."""
    topology = Topology("bench-slow", hosts=2, rails=4, spines=0, rate_bps=parse_rate(RATE))
    with Cluster(topology=topology) as cluster:

        def job() -> float:
            with ring(cluster, load=LOAD, env={"FABRIC_ADAPT": "1"}) as perf:
                time.sleep(SETTLING_S)
                since = time.monotonic_ns()
                time.sleep(seconds)
                return mean_rate(flow(cluster, perf), since, time.monotonic_ns()) * 8e-9

        def at(part: int) -> float:
            with slower(topology, part):
                return job()

        def removed() -> float:
            with cluster.inject(Carrier(f"h{SLOW_HOST}:rail{SLOW_RAIL}")):
                return job()

        ways = {
            "sound": job,
            "removed": removed,
            "quarter": lambda: at(4),
            "tenth": lambda: at(10),
        }
        return slow_rows(alternate(rounds, ways))


def slow_rows(gbps: dict[str, list[float]]) -> list[Row]:
    """The rows of `slow` from its rounds, in Gbit/s. Pure."""
    return [
        Row(
            f"one of four rails at a {part} of its rate: throughput, part of that rail removed",
            1.0,
            ratio(gbps[part], gbps["removed"]),
            "",
            better="higher",
            note=beside(gbps, "Gbit/s"),
            samples=gbps,
        )
        for part in ("quarter", "tenth")
    ]


@contextmanager
def slower(topology: Topology, part: int) -> Iterator[None]:
    """The slow rail at that part of its rate, both ways, until the block ends."""
    _shape(topology, topology.rate_bps // part)
    try:
        yield
    finally:
        _shape(topology, topology.rate_bps)


def _shape(topology: Topology, rate_bps: int) -> None:
    shape = f"rate {rate_bps} burst {topology.burst_bytes} latency {topology.queue_us}us"
    for port in (
        topology.host_port(SLOW_HOST, SLOW_RAIL),
        topology.leaf_port(SLOW_HOST, SLOW_RAIL),
    ):
        command = ["tc", "-n", port.ns, "qdisc", "change", "dev", port.ifname, "root", "tbf"]
        subprocess.run([*command, *shape.split()], check=True)
