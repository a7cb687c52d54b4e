"""Rails that a job fills at once: no sound one is lowered, and a fault under that load is found.

Real jobs on the demo's lab at 60 Mbit/s, where a probe waits for 53 ms in each full queue.
``./run bench detect --only starts`` does it twenty times, at two rates.
"""

import os
import time

import pytest

from bench.detect.live_starts import job, lowered
from bench.outage import links_up
from fabricd.cli import client
from lab.cluster import wait_until
from lab.demo.story import topology
from lab.faults.catalog import BlackHole, Loss
from telemetry.events import EventKind
from telemetry.timeline import Timeline

pytestmark = pytest.mark.alone  # what the job does not fill has no full queue

SLOW_S = 60.0
RATE = 60_000_000


@pytest.fixture
def filled(cluster):
    """The lab, all links up."""
    lab = cluster(topology=topology(f"t{os.getpid()}-filled", RATE))
    lab.start_daemons(hold={"hold_down_s": 0.5, "probation_s": 0.5})
    wait_until(lambda: links_up(lab), SLOW_S, "all links are up")
    return lab


def link(node, netdev):
    links = client.request(node.run_dir / "ctl.sock", {"op": "links"})
    return next(x for x in links if x["netdev"] == netdev)


def others(node):
    """The states of its other links."""
    links = client.request(node.run_dir / "ctl.sock", {"op": "links"})
    return [x["state"] for x in links if x["netdev"] != "rail2"]


def all_full(lab):
    """Whether all links and paths are up."""
    for node in lab.nodes:
        links = client.request(node.run_dir / "ctl.sock", {"op": "links"})
        if any(x["state"] != "up" for row in links for x in (row, *row["paths"])):
            return False
    return True


def held(lab):
    status = [client.request(n.run_dir / "ctl.sock", {"op": "status"}) for n in lab.nodes]
    assert all(s["payload"]["byte_counters"] == "read" for s in status)
    return sum(s["payload"]["verdicts_held"] for s in status)


def test_jobs_start_and_no_sound_rail_is_lowered(filled):
    wall = time.time_ns()
    for number in range(4):
        with job(filled, "alltoall" if number % 2 else "ring", 4.0):
            time.sleep(4.0)
    time.sleep(1.0)
    assert [why for node in filled.nodes for why in lowered(node, wall)] == []
    assert held(filled) > 0, "the queues were long enough for the verdicts to be asked"
    assert all_full(filled)


@pytest.mark.parametrize("direction", [pytest.param("rx", marks=pytest.mark.nightly), "tx"])
def test_a_black_hole_under_that_load_is_found(filled, direction):
    node = filled.nodes[1]
    with job(filled, "ring", SLOW_S):
        time.sleep(3.0)
        with filled.inject(BlackHole("h1:rail2", direction)):
            wait_until(lambda: link(node, "rail2")["state"] == "down", SLOW_S, "found")
        assert "down" not in [state for each in filled.nodes for state in others(each)]
        wait_until(lambda: link(node, "rail2")["state"] == "up", SLOW_S, "back")


def places(node, since_wall_ns):
    """Where its timeline says that faults are: part, element, direction; unknown ones left out."""
    with Timeline(node.state_dir / "timeline.db", host=node.name, read_only=True) as timeline:
        rows = timeline.query(since_ns=since_wall_ns, kind=EventKind.LOCATED, limit=None)
    found = {(r.data["part"], r.data["element"], r.data["direction"]) for r in rows}
    return {place for place in found if place[0] != "unknown"}


@pytest.mark.nightly
def test_a_loss_of_three_percent_is_laid_to_nobody_else_and_forgotten_soon(filled):
    node, wall = filled.nodes[2], time.time_ns()
    with job(filled, "ring", 3 * SLOW_S):
        time.sleep(3.0)
        with filled.inject(Loss("h2:rail2", 3.0, "rx")):
            wait_until(lambda: link(node, "rail2")["state"] == "degraded", SLOW_S, "found")
            time.sleep(10.0)
        began = time.monotonic()
        wait_until(lambda: all_full(filled), SLOW_S, "all links and paths are up")
        took = time.monotonic() - began
    assert places(node, wall) == {("link", "h2/2", "rx")}
    for each in filled.nodes:
        assert {place[:2] for place in places(each, wall)} <= {("link", "h2/2")}
    # It is 10 s by the rules, and minutes were what it took; the benchmark asks for 15.
    assert took < 25.0
