"""A clock is set while real packets are on their way: its own host finds out, others stay."""

from __future__ import annotations

import time

import pytest

from clocksync.page.clock_page import ClockReader
from fabricd.probes.client import host_id
from lab.clocks.virtual_clock import Step, VirtualClock
from lab.cluster import wait_until
from tests.lab.test_clock_live import SEED, START_S, Observer, raw_ns

SECOND = 10**9
LATER_S = 30
"""After the clock services began: they have fabric time by then."""
NOTICED_S = 3.0


def epoch(node):
    with ClockReader(node.run_dir) as reader:
        return reader.now().epoch


@pytest.mark.nightly
@pytest.mark.parametrize("by_ns", [400_000, -50_000_000])
def test_a_clock_that_is_set_leaves_the_others_alone_and_joins_again(cluster, by_ns):
    lab = cluster(hosts=4, rails=1)
    lab.start_daemons(restart=False, probe={"synchronized": False})
    origin = raw_ns()
    stepped = max(lab.nodes, key=lambda node: host_id(node.name))  # not the reference
    step = Step(host_id(stepped.name), origin + LATER_S * SECOND, by_ns)
    for node in lab.nodes:
        node.start_clock(seed=SEED, origin_ns=origin, steps=[step], restart=False)
    observer = Observer(lab, origin)
    observer.clocks = {
        node.name: VirtualClock(SEED, host_id(node.name), origin, [step]) for node in lab.nodes
    }
    wait_until(observer.locked, START_S, "all hosts have fabric time")
    before = epoch(stepped)
    assert raw_ns() < step.at_ns, "they took longer than the step waits"
    left = (step.at_ns - raw_ns()) / SECOND
    observer.watch(left - 0.2)
    assert not observer.missed

    while raw_ns() < step.at_ns + NOTICED_S * SECOND:
        observer.look()
        time.sleep(0.02)
    told = {name for name, _, _ in observer.missed}
    assert told <= {stepped.name}, "packets of the host that was set moved nobody else"
    observer.missed.clear()
    wait_until(lambda: observer.locked() and epoch(stepped) != before, START_S, "it joins again")
    observer.watch(3)
    assert not observer.missed
    assert len(observer.errors) > 100
