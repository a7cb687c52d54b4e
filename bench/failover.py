"""NIC faults under a ring all-reduce of four hosts with four rails, 100 Mbit/s each.

Each figure is taken from what the parts themselves record: the time of a fault from the lab's
ground truth, the first byte on a survivor from the plugin's stats page, throughput from the ranks,
flap counts from the daemon's timeline and metrics beside the kernel's own counter. One clock
(CLOCK_MONOTONIC of one kernel) stamps all of them.

The peer of the failover rows is the same job over one connection per pair of ranks, which gives up
as stock transports do (``FABRIC_FAILOVER=0``, TCP_USER_TIMEOUT): the time from a fault that lasts
to the job's death. That of the throughput row is a job that never had the fourth rail.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

from bench.follow import flow, mean_rate
from bench.outage import GIVE_UP_S, SETTLE_S, links_up, outages, ring
from bench.report import Row, percentile
from lab.cluster import Cluster, wait_until
from lab.demo.story import topology
from lab.faults.catalog import BlackHole, Carrier, Fault
from lab.faults.flap import Flap
from lab.services.perf import Perf
from lab.topology import parse_rate
from telemetry.timeline import Timeline

RATE = "100mbit"
"""Per rail: the links, not two cores that carry four hosts, have to be the limit. At 200 Mbit/s the
job gets 78 % of what the links carry and half of all threads wait for a CPU."""
HOLD_DOWN_S = 1.0
HOLD = {"hold_down_s": HOLD_DOWN_S}
# Faults of one bench come much faster than in life: keep the damping from adding to each return.
DAMPING = {"suppress": 100_000, "reuse": 1000}


def run(*, quick: bool) -> list[Row]:
    """All rows; ``quick`` takes fewer faults and fewer flap periods."""
    faults = 8 if quick else 50
    rows: list[Row] = []
    with Cluster(topology=topology("bench-failover", parse_rate(RATE))) as cluster:
        cluster.start_daemons(restart=False, hold=HOLD, damping=DAMPING)
        wait_until(lambda: links_up(cluster), 20, "all links UP")
        carrier_ms = _stock_dies_ms(cluster, Carrier("h1:rail1"))
        hole_ms = _stock_dies_ms(cluster, BlackHole("h2:rail2"))
        with ring(cluster) as perf:
            rows += _failover(cluster, perf, "carrier down", Carrier, faults, 50, carrier_ms)
            name = "black hole, daemon present"
            rows += _failover(cluster, perf, name, BlackHole, faults, 300, hole_ms)
            rows += _throughput(cluster, perf)
            rows += _kills(cluster, perf)
            rows += _clean(perf)
        rows += _flaps(cluster, (2, 20) if quick else (2, 20, 200, 600))
        for node in cluster.nodes:
            node.stop_services()
        with ring(cluster) as perf:
            name = "black hole, daemon absent"
            rows += _failover(cluster, perf, name, BlackHole, faults, 300, hole_ms)
            rows += _clean(perf, "daemon absent: ")
    return rows


def _failover(
    cluster: Cluster,
    perf: Perf,
    name: str,
    make: Callable[[str], Fault],
    faults: int,
    asked_ms: float,
    peer_ms: float,
) -> list[Row]:
    """``faults`` in turn over all rails of all hosts; each counts with its slowest communicator."""
    stalls = outages(cluster, perf, make, faults)
    got = percentile(stalls.worst_ms, 0.99)
    row = f"{name} → first byte on a survivor, p99"
    return [Row(row, asked_ms, got, "ms", peer=peer_ms, note=stalls.note())]


def _stock_dies_ms(cluster: Cluster, fault: Fault) -> float:
    """How long a job without failover outlives a fault that stays."""
    env = {"FABRIC_FAILOVER": "0"}
    with ring(cluster, name="stock", env=env) as perf, cluster.inject(fault):
        start = fault.started_ns
        wait_until(
            lambda: any(rank.poll() not in (None, 0) for rank in perf.ranks),
            GIVE_UP_S,
            "the end of the job without failover",
        )
        return (time.monotonic_ns() - start) / 1e6


def _throughput(cluster: Cluster, perf: Perf) -> list[Row]:
    """One of four rails down beside a job that has three rails only; and the way back."""
    full_from = time.monotonic_ns()
    time.sleep(4)
    full = mean_rate(flow(cluster, perf), full_from, time.monotonic_ns())
    with cluster.inject(Carrier("h1:rail1")):
        time.sleep(SETTLE_S)
        down_from = time.monotonic_ns()
        time.sleep(6)
        down_to = time.monotonic_ns()
    healthy = time.monotonic_ns()
    time.sleep(HOLD_DOWN_S + 3)
    measured = flow(cluster, perf)
    down = mean_rate(measured, down_from, down_to)
    back = next(
        (
            (int(edge) - healthy) / 1e9
            for edge in measured.edges_ns[:-6]
            if edge >= healthy
            and mean_rate(measured, int(edge), int(edge) + 600_000_000) >= 0.95 * full
        ),
        float("inf"),
    )
    for rank in perf.ranks:  # the peer has the machine to itself
        rank.send_signal(signal.SIGSTOP)
    try:
        with ring(cluster, rails=3, name="three-rails") as three:
            since = time.monotonic_ns()
            time.sleep(6)
            peer = mean_rate(flow(cluster, three), since, time.monotonic_ns())
    finally:
        for rank in perf.ranks:
            rank.send_signal(signal.SIGCONT)
    time.sleep(SETTLE_S)
    gbit = 8e-9
    return [
        Row(
            "throughput, one of four rails down, part of a three-rail job's",
            0.95,
            down / peer,
            "",
            better="higher",
            note=f"{down * gbit:.2f} beside {peer * gbit:.2f} Gbit/s; four rails {full * gbit:.2f}",
        ),
        Row(
            "link healthy → full speed, beyond the hold-down",
            1.0,
            back - HOLD_DOWN_S,
            "s",
            note=f"{back:.2f} s in all, hold-down {HOLD_DOWN_S:g} s; full is ≥ 95 % for 0.6 s",
        ),
    ]


def _kills(cluster: Cluster, perf: Perf) -> list[Row]:
    """SIGKILL to every daemon, then of every prober, in mid-traffic."""
    rows = []
    for what in ("daemon", "prober"):
        services = [getattr(node, what) for node in cluster.nodes]
        since = time.monotonic_ns()
        time.sleep(5)
        killed = time.monotonic_ns()
        for service in services:
            service.kill(signal.SIGKILL)
        time.sleep(5)
        measured = flow(cluster, perf)
        before = mean_rate(measured, since, killed)
        after = mean_rate(measured, killed, time.monotonic_ns())
        for service in services:
            service.start()
        wait_until(lambda: links_up(cluster), 20, "all links UP again")
        rows.append(
            Row(
                f"throughput after kill -9 of every {what}, part of before",
                0.97,
                after / before,
                "",
                better="higher",
                note="5 s before, 5 s after; started again behind that",
            )
        )
    return rows


def _clean(perf: Perf, prefix: str = "") -> list[Row]:
    """End the job in order: what its ranks say of errors and bytes."""
    for rank in perf.ranks:
        rank.send_signal(signal.SIGTERM)
    results = perf.wait(20)
    errors = sum(len(r.errors) + int(r.end.get("errors", 1)) for r in results)
    corrupt = sum(int(r.end.get("corrupt_bytes", 1)) for r in results)
    return [
        Row(f"{prefix}errors of the job", 0, errors, "", better="equal"),
        Row(f"{prefix}corrupt bytes of the job", 0, corrupt, "B", better="equal"),
    ]


def _flaps(cluster: Cluster, periods_ms: tuple[int, ...]) -> list[Row]:
    """100 flaps of each period: timeline and metrics beside the kernel's counter."""
    rows = []
    node = cluster.nodes[2]
    for rail, period_ms in enumerate(periods_ms):
        link = f"rail{rail}"
        with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
            before = timeline.flap_total(link), _flap_metric(cluster, link)
            kernel = node.carrier_down_count(rail)
            with cluster.inject(Flap(f"h2:{link}", period_ms, 100)) as fault:
                fault.wait()
            kernel = node.carrier_down_count(rail) - kernel
            time.sleep(1.5)
            stored = timeline.flap_total(link) - before[0]
            shown = _flap_metric(cluster, link) - before[1]
        rows.append(
            Row(
                f"100 flaps, {period_ms} ms apart: count error",
                0,
                abs(stored - 100) + abs(shown - 100),
                "",
                better="equal",
                note=f"timeline {stored}, metric {shown}, kernel {kernel}",
            )
        )
    return rows


def _flap_metric(cluster: Cluster, link: str) -> int:
    body = cluster.nodes[2].fetch("http://127.0.0.1:19200/metrics")
    found = re.search(
        rf'^fabricd_link_flaps_total\{{[^}}]*link="{link}"[^}}]*\}} (\S+)', body, re.MULTILINE
    )
    assert found, "no fabricd_link_flaps_total for " + link
    return int(float(found[1]))
