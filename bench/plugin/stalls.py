"""How long a job stands still when a rail goes: two hosts, four rails, a ring all-reduce."""

from __future__ import annotations

from bench.outage import Outages, links_up, outages, ring
from bench.report import Row, percentile
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import BlackHole, Carrier
from lab.topology import Topology, parse_rate

RATE = "1gbit"
QUEUE_US = 5000
HOLD = {"hold_down_s": 0.5}
# Faults of one bench come much faster than in life: keep the damping from adding to each return.
DAMPING = {"suppress": 100_000, "reuse": 1000}
OWN_HOLD = {"FABRIC_HOLD": "0.01"}
"""Without the daemon the plugin holds a path down itself, twice as long each time."""


def stalls(*, quick: bool) -> list[Row]:
    """Carrier down with the daemon there; a black hole without it; the links saturated."""
    return stalls_measured(10 if quick else 100)


def stalls_measured(faults: int) -> list[Row]:
    """The same with so many faults of each kind."""
    topology = Topology(
        "bench-stalls", hosts=2, rails=4, rate_bps=parse_rate(RATE), queue_us=QUEUE_US
    )
    with Cluster(topology=topology) as cluster:
        cluster.start_daemons(restart=False, hold=HOLD, damping=DAMPING)
        wait_until(lambda: links_up(cluster), 20, "all links UP")
        with ring(cluster) as perf:
            carrier = outages(cluster, perf, Carrier, faults)
        for node in cluster.nodes:
            node.stop_services()
        with ring(cluster, env=OWN_HOLD) as perf:
            hole = outages(cluster, perf, BlackHole, faults)
    return stalls_rows(carrier, hole)


def stalls_rows(carrier: Outages, hole: Outages) -> list[Row]:
    """The rows of `stalls`. Pure."""
    return [
        Row(
            f"{name}, links saturated: stall p{round(q * 100)}",
            asked,
            percentile(got.worst_ms, q),
            "ms",
            note=got.note(),
            samples={"worst_ms": got.worst_ms},
        )
        for name, got, q, asked in (
            ("carrier down, steer hint", carrier, 0.5, 10),
            ("carrier down, steer hint", carrier, 0.99, 30),
            ("black hole, no daemon", hole, 0.99, 250),
        )
    ]
