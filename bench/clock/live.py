"""Fabric time on real packets: hosts of a lab whose clocks are virtual, so that truth is known.

The probers probe as ever, over a bridge with tbf on each port. The clock services run in one
process here, ten steps a second, and each moment is looked at from the truth: how far off each
path's line is when it is used, and each host's fabric time. ptp4l and chronyd run meanwhile in the
same hosts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np

from bench.clock.peers import Chrony, Ptp4l, load
from bench.clock.services import Fabric, Seen
from bench.outage import links_up
from bench.report import Row
from lab.cluster import Cluster, wait_until
from lab.node import Node
from lab.topology import Topology, parse_rate

LOADS = {
    "idle": "idle", "udp400": "UDP 400 Mbit/s", "udp800": "UDP 800 Mbit/s", "tcp": "TCP one way",
    "tcp2": "TCP both ways",
}  # fmt: skip
FLOODS = ("tcp", "tcp2")
HOSTS, DEGREE = 8, 4
PAIR_NS, PAIR_P99_NS, MESH_NS = 20.0, 40.0, 10.0
P99_NS = {"idle": 15.0, "udp400": 40.0, "udp800": 30.0, "tcp": 40.0, "tcp2": 40.0}
HOP_NS = 1000.0
FLOOD = 0.95
PTP4L, CHRONY = 100.0, 10.0
"""So many times better than these: than ptp4l's median, than the p99 of chronyd's regression."""
DEEP_BURST = 256 * 1024
LOCK_S = 120.0
WARM_S = 15.0
TOLD = 2 / 3
"""Of the least way: an operator knows cables and switches, not what the stack takes."""
SETTLE_S = 20.0
"""Longer than any window."""


def _sent_bytes(node: Node) -> int:
    """What a host's rail has sent so far."""
    said = node.run(["ip", "-json", "-stats", "link", "show", "dev", "rail0"]).stdout
    return int(json.loads(said)[0]["stats64"]["tx"]["bytes"])


def _watch(
    cluster: Cluster, fabric: Fabric, peers: tuple[Ptp4l, Chrony], kind: str, seconds: float
) -> Seen:
    seen = Seen()
    ptp4l, chrony = peers
    before = len(ptp4l.errors_ns())
    senders = cluster.nodes[: 2 if kind == "tcp2" else 1]
    with load(cluster, kind, fabric.run):
        asked = began = time.monotonic()
        sent = [_sent_bytes(node) for node in senders]

        def look() -> None:
            nonlocal asked
            fabric.look(seen)
            if time.monotonic() >= asked:
                asked = time.monotonic() + 0.5
                error = chrony.error_ns()
                if error is not None:
                    seen.chrony.append(abs(error))

        fabric.run(seconds, look)
        passed = time.monotonic() - began
        least = min(_sent_bytes(node) - then for node, then in zip(senders, sent, strict=True))
        seen.carried = 8 * least / passed / cluster.topology.rate_bps
        seen.ptp4l = [abs(error) for error in ptp4l.errors_ns(before)]
    return seen


def _quantiles(values: list[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    return float(np.percentile(values, 50)), float(np.percentile(values, 99))


@contextmanager
def running(topology: Topology) -> Iterator[tuple[Cluster, Fabric]]:
    """A lab whose hosts all have fabric time."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(topology=topology))
        cluster.start_daemons(
            restart=False, probe={"peers_per_rail": DEGREE, "synchronized": False}
        )
        wait_until(lambda: links_up(cluster), 60, "all links UP")
        for node in cluster.nodes:
            node.kill_daemon()  # The probers go on as they were told.
        fabric = Fabric(cluster)
        stack.callback(fabric.close)
        wait_until(fabric.agreed, LOCK_S, "all hosts have one fabric time")
        yield cluster, fabric


def topology(name: str = "clock") -> Topology:
    """Eight hosts of one rail, with offload packets as the kernel makes them.

    The shapers cut into frames what is larger than a burst, so two cores hardly fill 1 Gbit/s both
    ways. They do with packets that all pass whole; but behind those a probe waits for 59 KB each
    time, so that in a flood none ever finds a queue empty, and no wire does that.
    """
    return Topology(name, hosts=HOSTS, rails=1, rate_bps=parse_rate("1gbit"), whole=False)


def live(*, quick: bool) -> list[Row]:
    """Pairs, the mesh and the bound under each load, beside ptp4l and chronyd."""
    seconds = 10.0 if quick else 40.0
    rows: list[Row] = []
    total = Seen()
    steps = 0
    for prefix, shape, kinds in (
        ("", topology(), tuple(LOADS)),
        ("offload packets of 59 KB, ", replace(topology(), whole=True), FLOODS),
        ("bursts of 256 KB, ", replace(topology(), burst_bytes=DEEP_BURST), FLOODS),
    ):
        with ExitStack() as stack:
            cluster, fabric = stack.enter_context(running(shape))
            peers = Ptp4l(cluster), Chrony(cluster)
            for peer in peers:
                stack.enter_context(peer.running())
            # The services stood still while the peers began.
            fabric.run(WARM_S)
            for kind in kinds:
                seen = _watch(cluster, fabric, peers, kind, seconds)
                made = live_rows(kind, seen)
                made = [replace(row, name=f"{prefix}{row.name}") for row in made]
                if shape.burst_bytes == DEEP_BURST:  # no figure is asked
                    made = [replace(row, asked=None) for row in made]
                rows += made
                total.missed += seen.missed
                total.checks += seen.checks
            if not prefix:
                rows += _told(cluster, fabric, peers, seconds / 2, total)
            steps += sum(path.estimator.steps for service in fabric.services.values()
                         for path in service.table.all())  # fmt: skip
    return [
        *rows,
        Row("bounds that do not contain the truth", 0, total.missed, "", better="equal",
            note=f"{total.checks} checks"),
        Row("steps of clocks that were seen where there were none", 0, steps, "", better="equal"),
    ]  # fmt: skip


def _told(
    cluster: Cluster, fabric: Fabric, peers: tuple[Ptp4l, Chrony], seconds: float, total: Seen
) -> list[Row]:
    """The bound where an operator said what a way takes at least: most of what it does take."""
    least = fabric.least_way_ns()
    told = int(TOLD * least)
    fabric.tell(told)
    fabric.run(SETTLE_S)
    rows = []
    for kind in FLOODS:
        seen = _watch(cluster, fabric, peers, kind, seconds)
        median, most = _quantiles(seen.bounds)
        rows.append(
            Row(f"{LOADS[kind]}, a least way told: bound a hop, p99", HOP_NS, most, "ns",
                note=f"median {median:.0f} ns; least_way_ns = {told}, of {least:.0f} in truth")
        )  # fmt: skip
        total.missed += seen.missed
        total.checks += seen.checks
    return rows


def live_rows(kind: str, seen: Seen) -> list[Row]:
    """What is said of a load; peers are asked about the hosts that it is between."""
    name = LOADS[kind]
    pair, mesh = _quantiles(seen.pairs), _quantiles(seen.mesh)
    path, two = _quantiles(seen.loaded_pair), _quantiles(seen.loaded)
    ptp, chrony = _quantiles(seen.ptp4l), _quantiles(seen.chrony)
    peers = (
        f"ptp4l {ptp[0] / 1e3:.1f} / {ptp[1] / 1e3:.1f} us ({len(seen.ptp4l)}), chronyd "
        f"{chrony[0]:.0f} / {chrony[1]:.0f} ns ({len(seen.chrony)}); p50 / p99"
    )
    between = f"{name}: between the loaded hosts"
    direct = [
        Row(f"{between}: their own path, median", PAIR_NS, path[0], "ns"),
        Row(f"{between}: their own path, p99", PAIR_P99_NS, path[1], "ns"),
    ] if seen.loaded_pair else []  # fmt: skip
    bound = _quantiles(seen.bounds)
    flooded = kind.startswith("tcp")
    # Under a flood ptp4l may not say anything for so long.
    ratios = [
        Row(f"{between}: ptp4l's median, in ours", PTP4L, ptp[0] / two[0], "", better="higher",
            note=f"its p99 in ours: {ptp[1] / two[1]:.0f}"),
    ] if seen.ptp4l else []  # fmt: skip
    return [
        # Less is no flood.
        Row(f"{name}: part of its rate that the loaded link carries", FLOOD if flooded else None,
            seen.carried, "", better="higher"),
        Row(f"{name}: a pair, median", PAIR_NS, pair[0], "ns"),
        Row(f"{name}: a pair, p99", PAIR_P99_NS, pair[1], "ns"),
        Row(f"{name}: after the mesh, median", MESH_NS, mesh[0], "ns"),
        Row(f"{name}: after the mesh, p99", P99_NS[kind], mesh[1], "ns",
            note=f"without a line or a time: {seen.silent} of "
            f"{len(seen.pairs) + len(seen.mesh) + seen.silent} looks"),
        *direct,
        Row(f"{between}, after the mesh, median", MESH_NS, two[0], "ns",
            peer=ptp[0] if seen.ptp4l else None, note=peers),
        Row(f"{between}, after the mesh, p99", P99_NS[kind], two[1], "ns", peer=chrony[1]),
        *ratios,
        Row(f"{between}: the p99 of chronyd's regression, in ours", CHRONY, chrony[1] / two[1],
            "", better="higher", note=f"its median in ours: {chrony[0] / two[0]:.1f}"),
        Row(f"{name}: bound a hop, p99", HOP_NS if flooded else None, bound[1], "ns",
            note=f"median {bound[0]:.0f} ns; half of the least round trip is in it"),
    ]  # fmt: skip
