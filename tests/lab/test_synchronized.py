"""Probes by fabric time: two hosts, two clock services, real packets."""

from __future__ import annotations

import json
import sys
import time

import pytest

from clocksync.page.clock_page import ClockPage, ClockReader, Line, State
from fabricd.probes.records import Direction, MissRecord
from fabricd.probes.ring import RingError, RingReader
from lab.cluster import wait_until
from lab.faults.catalog import BlackHole

START_S = 60
MS = 10**6
INTERVAL = 10 * MS
AHEAD_NS = INTERVAL // 2
"""Of fabric time before the wall clock: its grid is as far from that one's as can be."""


def ring(node):
    return RingReader(node.run_dir / "prober" / "ring")


def synchronized(cluster):
    for node in cluster.nodes:
        try:
            with ring(node) as reader:
                paths, header = reader.paths(), reader.header()
        except RingError:
            return False  # The prober has just been started.
        if not header.synchronized or not paths or not all(path.by_due_time for path in paths):
            return False
    return True


def leave_a_page(node):
    """As a service left it that ran until now: the next one goes on with its time."""
    raw, wall = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), time.time_ns()
    page = ClockPage(node.run_dir)
    page.write(Line(raw, wall + AHEAD_NS, 0.0, 1e6, 0.0, 0.0, 0, 600 * 10**9, State.HOLDOVER, 1, 5))
    page.close()


def ahead_ns(node):
    """Fabric time less CLOCK_MONOTONIC on a host."""
    with ClockReader(node.run_dir) as reader:
        best = None
        for _ in range(20):
            before = time.monotonic_ns()
            now, _bound = reader.read()
            width = time.monotonic_ns() - before
            if best is None or width < best[0]:
                best = (width, now - before - width // 2)
    return best[1]


@pytest.fixture(scope="module")
def fabric(module_cluster):
    cluster = module_cluster(hosts=2, rails=1)
    cluster.start_daemons(restart=False)
    for node in cluster.nodes:
        leave_a_page(node)
    for node in cluster.nodes:
        node.start_clock(restart=False)
    wait_until(lambda: synchronized(cluster), START_S, "probes go by fabric time")
    return cluster


def on_grid(cluster):
    """How far the next single packet of each path is from the grid of fabric time."""
    far = []
    for node, peer in (cluster.nodes, reversed(cluster.nodes)):
        with ring(node) as reader:
            (path,) = reader.paths()
        # One machine: the peer's CLOCK_MONOTONIC is ours.
        into = (path.due_ns + ahead_ns(peer)) % INTERVAL
        far.append(min(into, INTERVAL - into))
    return far


def test_packets_are_on_the_grid_of_fabric_time(fabric):
    first = fabric.nodes[0]

    def apart():
        """Of the two grids: where the wall clock is disciplined they move against each other."""
        wall = (time.time_ns() - time.monotonic_ns() - ahead_ns(first)) % INTERVAL
        return min(wall, INTERVAL - wall)

    # On the one grid while the other is somewhere else.
    wait_until(lambda: apart() > MS and max(on_grid(fabric)) < 100_000, START_S, "all on the grid")
    shown = first.run([sys.executable, "-m", "fabricd.cli", "clock", "--json"]).stdout
    assert json.loads(shown)["probes"] == "fabric"
    text = first.run([sys.executable, "-m", "fabricd.cli", "clock"]).stdout
    assert "fabric time" in text.split("Probes go by", 1)[1].splitlines()[0]


def test_a_one_way_loss_is_called_by_when_it_was_due(fabric):
    receiver, sender = fabric.nodes
    wait_until(lambda: synchronized(fabric), START_S, "probes go by fabric time")
    with ring(receiver) as heard, ring(sender) as told:
        fault = BlackHole("h1:rail0", "tx")
        with fabric.inject(fault):
            time.sleep(0.5)
        began = next(int(row["t_ns"]) for row in fabric.truth() if row["id"] == fault.id)

        def misses(reader, way):
            return [
                e for e in reader.events()
                if isinstance(e, MissRecord) and e.direction is way and not e.inconclusive
                and e.mono_ns >= began
            ]  # fmt: skip

        rx, tx = misses(heard, Direction.RX), misses(told, Direction.TX)
    assert rx
    assert tx, "and the sender learns of it"
    offset = ahead_ns(receiver)
    assert all(miss.due_ns for miss in rx[:3])
    for miss in rx[:3]:
        into = (miss.due_ns + offset) % INTERVAL
        assert min(into, INTERVAL - into) < 100_000, "due on the grid"
        assert miss.mono_ns - miss.due_ns >= INTERVAL // 8, "never before it could have come"
    # How soon is for bench/clock to say; a machine that is busy makes some intervals of it.
    assert rx[0].mono_ns - rx[0].due_ns < 0.2 * 10**9
    wait_until(lambda: synchronized(fabric), START_S, "and so it goes on afterwards")


@pytest.mark.nightly
def test_without_a_page_the_wall_clock_serves_and_nothing_is_lost(fabric):
    wait_until(lambda: synchronized(fabric), START_S, "probes go by fabric time")
    node = fabric.nodes[0]
    with ring(fabric.nodes[1]) as heard:
        node.clock.stop()
        (node.run_dir / "clock").unlink()

        def fell_back():
            with ring(node) as reader:
                (path,) = reader.paths()
                return not reader.header().synchronized and not path.by_due_time

        wait_until(fell_back, START_S, "it goes by the wall clock")
        time.sleep(2)
        rows = [e.count for e in heard.events() if isinstance(e, MissRecord) and not e.inconclusive]
        (path,) = heard.paths()
    # A prober of a busy machine may be late by itself, but a grid that moves makes no row.
    assert max(rows, default=0) < 3
    assert not path.rx_missed
    assert path.rx_lost == 0
    node.start_clock(restart=False)
    wait_until(lambda: synchronized(fabric), START_S, "it is back")
