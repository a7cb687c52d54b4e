"""Nothing is wrong with any link: does anybody say so, while hosts are starved, stopped, squeezed?

Three hosts with eight links each at the fast cadence. Twice as many compute threads as cores;
daemons, probers and whole hosts stopped for up to 2 s; a memory limit around all of them that a
hog keeps full, so that allocations wait for reclaim. Every DOWN of a link, on a page or in a
timeline, is a false one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack

from bench.detect.live_lab import CARRYING, FAST, compute, lab
from bench.detect.live_memory import squeeze
from bench.report import Row
from lab.cluster import Cluster
from lab.node import Node
from lab.services.service import Service
from telemetry.events import EventKind, LinkState
from telemetry.timeline import Timeline

HOSTS, LINKS = 3, 8
MINUTES = 30.0
MOST_S = 2.0
EVERY_S = 4.0
SAID = 4
"""False ones whose reasons are told."""


def false_downs(*, quick: bool, minutes: float | None = None) -> list[Row]:
    """``minutes``, or 30; one when ``quick``."""
    seconds = 60 * minutes if minutes else 60 if quick else 60 * MINUTES
    dice = random.Random(3)
    with ExitStack() as stack:
        memory = stack.enter_context(squeeze())
        cluster, watch = stack.enter_context(lab("false", hosts=HOSTS, rails=LINKS, probe=FAST))
        began, wall = time.monotonic_ns(), time.time_ns()
        stack.enter_context(compute(2 * (os.cpu_count() or 1)))
        stack.enter_context(memory.pressure())
        pauses = _pause_at_random(cluster, dice, seconds)
        pages = sum(row.state not in CARRYING for row in watch.rows(began))
        links = [why for node in cluster.nodes for why in _downs(node, wall, EventKind.LINK_STATE)]
        paths = [why for node in cluster.nodes for why in _downs(node, wall, EventKind.PATH_STATE)]
        stalls = memory.stalled_text()
    note = (
        f"{HOSTS} hosts, {seconds / 60:g} min, {pauses} pauses; {stalls}; "
        f"single paths given up: {len(paths)}"
    )
    return [
        Row(f"false DOWN, {LINKS} links, {seconds / 60:g} min", 0, max(pages, len(links)), "",
            better="equal", note="; ".join([note, *links[:SAID]]))
    ]  # fmt: skip


def _pause_at_random(cluster: Cluster, dice: random.Random, seconds: float) -> int:
    """Stop something for up to two seconds, again and again; how many times."""
    end = time.monotonic() + seconds
    pauses = 0
    while time.monotonic() < end:
        chosen = _victims(cluster, dice)
        pids = [service.pid for service in chosen if service.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(dice.uniform(0.01, MOST_S))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        pauses += 1
        time.sleep(dice.uniform(0.1, EVERY_S))
    return pauses


def _victims(cluster: Cluster, dice: random.Random) -> list[Service]:
    """One daemon, one prober, both of a host, all probers but one, or all."""
    node = dice.choice(cluster.nodes)
    others = [n for n in cluster.nodes if n is not node]
    wanted = dice.choice(
        [
            [node.daemon],
            [node.prober],
            [node.daemon, node.prober],
            [n.prober for n in others],
            [n.prober for n in cluster.nodes],
        ]
    )
    return [service for service in wanted if service is not None]


def _downs(node: Node, since_wall_ns: int, kind: EventKind) -> list[str]:
    """DOWN transitions of that kind since then, by the timeline: where, and why."""
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        rows = timeline.query(since_ns=since_wall_ns, kind=kind.value, limit=100_000)
        return [
            f"{node.name} {row.link}: {row.reason}"
            for row in rows
            if row.to_state is LinkState.DOWN
        ]
