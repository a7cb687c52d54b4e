"""An asymmetric ECMP fabric, real packets: the path is named and moved, and nothing flaps."""

from __future__ import annotations

import json
import sys
import time

import pytest
from test_clock_live import SEED, START_S, Observer, raw_ns
from test_daemon_flaps import ask

from clocksync.mesh.ecmp_rerouter import FIRST_PORT
from fabricd.probes.client import host_id
from lab.cluster import wait_until
from lab.network.asymmetric_path import BIT, AsymmetricPath

HOSTS = 4
NAMED_S, CURED_S = 120, 300


@pytest.fixture(scope="module")
def fabric(module_cluster):
    """Four hosts; from the second to the third every other source port goes the long way."""
    cluster = module_cluster(hosts=HOSTS, rails=1)
    with AsymmetricPath(cluster.topology, 1, 2):
        cluster.start_daemons(restart=False, probe={"synchronized": False})
        origin = raw_ns()
        for node in cluster.nodes:
            node.start_clock(seed=SEED, origin_ns=origin, restart=False)
        observer = Observer(cluster, origin)
        wait_until(observer.locked, START_S, "all hosts have fabric time")
        yield cluster, observer


def path(node, to):
    """A row of the clock's document."""
    document = json.loads((node.run_dir / "clock.json").read_text())
    (found,) = (row for row in document["paths"] if row["host"] == host_id(to.name))
    return found


def guilty(cluster):
    """All paths that are not well: (from, to)."""
    return {
        (one.name, other.name)
        for one in cluster.nodes
        for other in cluster.nodes
        if one is not other and path(one, other)["judged"] not in ("watching", "suspect")
    }


def events(cluster):
    """What detection wrote down: all but starts, and gaps of probers on a busy machine."""
    rows = [row for node in cluster.nodes for row in ask(node, "timeline", limit=10_000)]
    return [row for row in rows if row["kind"] not in ("daemon", "prober")]


@pytest.mark.nightly  # its rules wait for minutes
def test_the_longer_way_is_named_moved_and_nobody_else_notices(fabric):
    cluster, observer = fabric
    one, other = cluster.nodes[1], cluster.nodes[2]
    both = {(one.name, other.name), (other.name, one.name)}
    seen = set()
    quiet = events(cluster)

    def until(condition, seconds, what):
        """Bounds are looked at all the while; asking is dear."""
        end = time.monotonic() + seconds
        while True:
            observer.watch(1)
            seen.update(guilty(cluster))
            if condition():
                return
            assert time.monotonic() < end, f"{what}: not within {seconds} s"

    began = time.monotonic()
    until(lambda: guilty(cluster) == both, NAMED_S, "both ends name the path")
    named_s, before = time.monotonic() - began, path(one, other)
    until(lambda: path(one, other)["source_port"] & BIT, CURED_S, "it has a port of the short way")
    until(lambda: not guilty(cluster), CURED_S, "its ways are alike")
    cured_s = time.monotonic() - began
    observer.watch(10)
    after = path(one, other)
    text = one.run([sys.executable, "-m", "fabricd.cli", "clock", "--paths"]).stdout
    print(f"named after {named_s:.0f} s: {before}\nwell after {cured_s:.0f} s: {after}\n{text}")
    assert seen == both, "no other path was blamed"
    assert after["source_port"] >= FIRST_PORT
    assert str(after["source_port"]) in text
    assert path(other, one)["source_port"] == 0, "the shorter way stays"
    assert abs(after["surplus_ns"]) < abs(before["surplus_ns"]) / 2
    assert events(cluster) == quiet, "no flap, no suspect: detection saw nothing"
    assert not observer.missed
    assert observer.checks > 500
