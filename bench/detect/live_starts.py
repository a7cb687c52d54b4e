"""Jobs start on rails that they fill at once, with queues of 400 kB: is a sound rail lowered?

Four hosts with four rails of 60 or 100 Mbit/s, as the demo's. A ring and an all-to-all start in
turn and run for some seconds: a probe is late by 53 ms a port then, and three misses take 35 ms.
Every state but UP and PROBATION of a link or path, on a timeline, is a false one.

Under the same load rails become black holes, and one loses 3 % for a while. A hole has to be found
as soon as a job needs it; after the loss the full weight has to be back soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.detect.live_lab import DAMPING, HOLD, OUT
from bench.detect.live_pages import PageWatch
from bench.outage import links_up
from bench.report import Row
from fabricd.steer.page import PageError, decode
from lab.cluster import Cluster, wait_until
from lab.demo.story import topology
from lab.faults.base import Direction
from lab.faults.catalog import BlackHole, Loss
from lab.node import Node
from telemetry.events import EventKind, LinkState
from telemetry.timeline import Timeline

RATES = (60, 100)
"""Mbit/s."""
RUNS_S = 3.0
HELD_S = 25.0
"""How long a job goes on under faults, at most, for each of them."""
LOSES_S = 20.0
RETURN_S = 60.0
FULL = 1000
WELL = frozenset({LinkState.UP, LinkState.PROBATION})
SAID = 3


def starts(*, quick: bool) -> list[Row]:
    """Twenty starts at each rate and some faults; four starts at one rate when ``quick``."""
    rows = []
    for rate in RATES[:1] if quick else RATES:
        with _lab(rate) as (cluster, watch):
            rows += _starts(cluster, rate, 4 if quick else 20)
            rows += _holes(cluster, watch, rate, 3 if quick else 12)
            rows.append(_return(cluster, rate))
    return rows


@contextmanager
def _lab(rate: int) -> Iterator[tuple[Cluster, PageWatch]]:
    with Cluster(topology=topology("detect-starts", rate * 10**6)) as cluster:
        cluster.start_daemons(restart=False, hold=HOLD, damping=DAMPING)
        wait_until(lambda: links_up(cluster), 30, "all links UP")
        with PageWatch(cluster) as watch:
            yield cluster, watch


@contextmanager
def job(cluster: Cluster, collective: str, seconds: float) -> Iterator[None]:
    """A collective that fills all rails, for as long as the block lasts, or ``seconds``."""
    words = ["--size", "4M", "--duration", f"{seconds:g}", "--wait", "block", "--verify", "full"]
    words += ["--channels", str(cluster.topology.rails)]
    perf = cluster.start_perf("ring" if collective == "ring" else "alltoall", *words)
    try:
        yield
    finally:
        perf.kill()


def lowered(node: Node, since_wall_ns: int) -> list[str]:
    """Transitions of a host's links and paths to a state that is not well, in words."""
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        found = timeline.query(since_ns=since_wall_ns, limit=None)
    return [
        f"{node.name} {row.link} {row.peer or ''} {row.to_state.name}: {row.reason}"
        for row in found
        if row.kind in (EventKind.LINK_STATE, EventKind.PATH_STATE)
        and row.to_state is not None and row.to_state not in WELL
    ]  # fmt: skip


def _starts(cluster: Cluster, rate: int, count: int) -> list[Row]:
    bad, said = 0, []
    for number in range(count):
        wall = time.time_ns()
        with job(cluster, "alltoall" if number % 2 else "ring", RUNS_S):
            time.sleep(RUNS_S)
        time.sleep(0.5)  # what is late is written
        found = [why for node in cluster.nodes for why in lowered(node, wall)]
        bad += bool(found)
        said += found
        wait_until(lambda: links_up(cluster), 30, "all links UP again")
    return [
        Row(f"{count} job starts at {rate} Mbit/s: with a sound rail or path lowered", 0, bad, "",
            better="equal", note="; ".join(said[:SAID]))
    ]  # fmt: skip


def _holes(cluster: Cluster, watch: PageWatch, rate: int, count: int) -> list[Row]:
    took: dict[Direction, list[float]] = {"both": [], "rx": [], "tx": []}
    ways: tuple[Direction, ...] = ("both", "tx", "rx")
    with job(cluster, "ring", count * HELD_S):
        time.sleep(RUNS_S)
        for number in range(count):
            host, netdev = f"h{number % 4}", f"rail{3 * number % 4}"
            way = ways[number % 3]
            wait_until(lambda: links_up(cluster), RETURN_S, "all links UP again")
            with cluster.inject(BlackHole(f"{host}:{netdev}", way)) as fault:
                seen = watch.first(host, netdev, OUT, fault.started_ns, 2.0)
                ms = (seen.t_ns - fault.started_ns) / 1e6 if seen else float("inf")
                took[way].append(ms)
                time.sleep(0.3)
    return [
        Row(f"black hole ({way}) of a filled rail at {rate} Mbit/s → DOWN, the latest", 300,
            max(found), "ms", note=f"{len(found)} holes", samples={"ms": found})
        for way, found in took.items()
    ]  # fmt: skip


def _return(cluster: Cluster, rate: int) -> Row:
    with job(cluster, "ring", LOSES_S + RETURN_S):
        time.sleep(RUNS_S)
        with cluster.inject(Loss("h2:rail2", 3.0, "both")):
            time.sleep(LOSES_S)
            found = [why for node in cluster.nodes for why in _less(node)]
        ended = time.monotonic()
        while any(_less(node) for node in cluster.nodes) and time.monotonic() < ended + RETURN_S:
            time.sleep(0.05)
        took = time.monotonic() - ended
    name = f"3 % loss of a filled rail at {rate} Mbit/s ended: full weight again, paths too"
    return Row(name, 15, took if found else float("inf"), "s", note=f"lowered: {len(found)}")


def _less(node: Node) -> list[str]:
    """What the host's page gives less than the full weight."""
    while True:
        try:
            page = decode((node.run_dir / "steer").read_bytes())
        except PageError:  # being written
            time.sleep(0.001)
            continue
        rails = [rail.netdev for rail in page.rails if rail.weight != FULL]
        return rails + [f"{p.netdev} {p.remote}" for p in page.paths if p.weight != FULL]
