"""One of four rails loses packets: the job with and without the daemon, beside three rails alone.

Four hosts and a ring with a channel for each rail. Each way is a job of its own. The peer is a job
that never had the fourth rail. Without the daemon means that the plugin sees no steer page: the
daemons run all the time, so the CPU is the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from bench.follow import flow, mean_rate
from bench.outage import links_up, others_share, ring
from bench.plugin.rounds import beside, ratio
from bench.report import Row
from lab.cluster import Cluster, wait_until
from lab.demo.cpu import CpuWatch
from lab.demo.story import RAILS, topology
from lab.faults.catalog import Loss
from lab.topology import parse_rate
from telemetry.events import LinkState

RATE = "100mbit"
"""Per rail: the links, not two cores that carry four hosts, have to be the limit."""
PERCENT = 3.0
HOST, RAIL = 1, RAILS - 1
LOAD = ("--size", "8M", "--verify", "none")
FOUND_S = 30.0
"""A verdict is there by then: 1 % is found within 3 s."""
WELL_S = 120.0
SETTLING_S = 2.0
HOLD = {"hold_down_s": 0.5}
DAMPING = {"suppress": 100_000, "reuse": 1000}
"""Losses of one bench come much faster than in life: damping must not add to each return."""
NO_PAGE = {"FABRIC_RUN_DIR": "/nonexistent"}


def lossy(*, quick: bool) -> list[Row]:
    """Throughput under 3 % loss, part of that of the other three rails and of the plugin's own."""
    return lossy_measured(1 if quick else 5, 4.0 if quick else 8.0)


def lossy_measured(rounds: int, seconds: float, percent: float = PERCENT) -> list[Row]:
    """The same, so many rounds of so many seconds each way."""
    taken: dict[str, list[float]] = {}
    others: list[float] = []
    with Cluster(topology=topology("bench-lossy", parse_rate(RATE))) as cluster:
        cluster.start_daemons(hold=HOLD, damping=DAMPING)
        wait_until(lambda: links_up(cluster), 20, "all links UP")

        def job(rails: int = RAILS, env: Mapping[str, str] | None = None) -> float:
            watch = CpuWatch()
            with ring(cluster, rails=rails, load=LOAD, env=env) as perf:
                pids = [pid for node in cluster.nodes for pid in node.pids()]
                time.sleep(SETTLING_S)
                before, since = watch.sample(pids), time.monotonic_ns()
                time.sleep(seconds)
                until, after = time.monotonic_ns(), watch.sample(pids)
                others.append(others_share(before, after))
                return mean_rate(flow(cluster, perf), since, until) * 8e-9

        for number in range(rounds):
            sound = {"four rails": job, "three rails": lambda: job(RAIL)}
            under_loss = {"daemon": job, "no daemon": lambda: job(env=NO_PAGE)}
            _measure(sound, number, taken)
            with cluster.inject(Loss(f"h{HOST}:rail{RAIL}", percent)):
                wait_until(lambda: degraded(cluster), FOUND_S, "the verdict on the lossy link")
                _measure(under_loss, number, taken)
            if number + 1 < rounds:
                wait_until(lambda: links_up(cluster), WELL_S, "all links UP again")
    return lossy_rows(percent, taken, max(others))


def _measure(
    ways: Mapping[str, Callable[[], float]], number: int, taken: dict[str, list[float]]
) -> None:
    """Each way once, in turn the other one first."""
    for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
        taken.setdefault(name, []).append(ways[name]())


def degraded(cluster: Cluster) -> bool:
    """Whether the daemon of the lossy host has the link as DEGRADED."""
    body = cluster.nodes[HOST].fetch("http://127.0.0.1:19200/metrics")
    states = re.findall(r"^fabricd_link_state\{([^}]*)\} (\S+)$", body, re.MULTILINE)
    return any(
        f'link="rail{RAIL}"' in labels and float(value) == LinkState.DEGRADED
        for labels, value in states
    )


def lossy_rows(percent: float, gbps: Mapping[str, list[float]], others: float) -> list[Row]:
    """The rows of `lossy` from its rounds, in Gbit/s; ``others``: their part of the CPU. Pure."""
    note = f"{beside(gbps, 'Gbit/s')}; others had up to {others:.0%} of the CPU"
    name = f"one of four rails loses {percent:g} %, daemon on: throughput, part of"
    return [
        Row(
            f"{name} {what}",
            asked,
            ratio(gbps["daemon"], gbps[peer]),
            "",
            better="higher",
            note=note,
            samples=dict(gbps),
        )
        for what, asked, peer in (
            ("the other three alone", 0.95, "three rails"),
            ("that without the daemon", 1.0, "no daemon"),
        )
    ]
