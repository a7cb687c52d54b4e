"""An MTU black hole on one rail: the job lives on the other, attempts at the bad one back off."""

import subprocess
import time

import pytest
from test_failover import PATIENCE_S, assert_progress, events_of, job, rails_of

from lab.cluster import wait_until
from telemetry.statspage import StatsEventKind

BAD = 1
WATCHED_S = 16.0
MOST_ATTEMPTS = 10
"""Attempts 0.5, 1, 2, 4 and 8 s apart, and what failed with the first; without the back-off there
are 16 and more."""


def jumbo(lab):
    """Frames of 9,000 bytes on every rail, none of which the kernel cuts up by itself."""
    for host, node in enumerate(lab.nodes):
        for rail in range(lab.topology.rails):
            port = lab.topology.leaf_port(host, rail)
            leaf(port, 9000)
            node.run(["ip", "link", "set", f"rail{rail}", "mtu", "9000"])
            node.run(["ethtool", "-K", f"rail{rail}", "tso", "off", "gso", "off"])


def leaf(port, mtu):
    command = ["ip", "-n", port.ns, "link", "set", port.ifname, "mtu", str(mtu)]
    subprocess.run(command, check=True)


def downs(node):
    """Paths over the bad rail that were given up so far."""
    return rails_of(node)[f"rail{BAD}"].failovers


@pytest.mark.nightly
def test_attempts_back_off_and_a_link_event_brings_the_rail_back(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    jumbo(lab)
    node = lab.nodes[0]
    with job(lab, "p2p", channels=2) as perf:
        port = lab.topology.leaf_port(0, BAD)
        leaf(port, 1500)  # what h0 sends in full frames is lost on its way in
        wait_until(lambda: downs(node) >= 1, PATIENCE_S, "the path given up")
        before = downs(node)
        rows = len(events_of(node, StatsEventKind.PATH_DOWN))
        began = time.monotonic()
        while time.monotonic() - began < WATCHED_S:
            assert_progress(perf)
            time.sleep(1)
        attempts = downs(node) - before
        assert 3 <= attempts <= MOST_ATTEMPTS, attempts
        said = len(events_of(node, StatsEventKind.PATH_DOWN)) - rows
        assert said <= downs(node) - before, "counted after the events, for attempts go on"
        # The leaf is mended, which nobody here can see; then the rail's own MTU changes.
        leaf(port, 9000)
        sent = rails_of(node)[f"rail{BAD}"].tx_bytes
        node.run(["ip", "link", "set", f"rail{BAD}", "mtu", "8900"])
        wait_until(
            lambda: rails_of(node)[f"rail{BAD}"].tx_bytes > sent + 2_000_000, 12.0, "the rail back"
        )
        assert_progress(perf)
