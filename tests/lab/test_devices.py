"""Devices and addresses that come and go under a running job: devices made anew, all
addresses of both ends at once. Real processes and packets, no daemon."""

import time

import pytest
from test_failover import (
    PATIENCE_S,
    assert_given_up,
    assert_progress,
    events_of,
    job,
    rails_of,
    returned,
)

from lab import build
from lab.cluster import wait_until
from lab.faults import Carrier
from telemetry.statspage import StatsEventKind

RATE = "200mbit"


def unplug(lab, host, rail):
    lab.nodes[host].run(["ip", "link", "del", f"rail{rail}"])


def plug(lab, host, rail):
    """As the lab was built, but with an index of the kernel's choice. The index."""
    node, leaf, name = lab.nodes[host], lab.topology.leaf_port(host, rail), f"rail{rail}"
    peer = ["peer", "name", leaf.ifname, "netns", leaf.ns]
    node.run(["ip", "link", "add", name, "type", "veth", *peer])
    for where, device in (([], name), (["-n", leaf.ns], leaf.ifname)):
        shaper = ["tbf", "rate", RATE, "burst", str(lab.topology.burst_bytes), "latency", "10ms"]
        node.run(["tc", *where, "qdisc", "add", "dev", device, "handle", "1:", "root", *shaper])
    node.run(["ip", "-n", leaf.ns, "link", "set", leaf.ifname, "master", "br0", "up"])
    node.run(["ip", "link", "set", name, "up"])
    build.set_addresses(lab.topology, host, name, present=True)
    return int(node.run(["cat", f"/sys/class/net/{name}/ifindex"]).stdout)


def carries(node, rail, amount=1_000_000):
    before = rails_of(node)[rail].tx_bytes
    wait_until(
        lambda: rails_of(node)[rail].tx_bytes > before + amount, PATIENCE_S, f"payload on {rail}"
    )


@pytest.mark.parametrize("host", [0, 1], ids=["sender", "receiver"])
def test_a_device_is_made_anew_under_its_name(cluster, host):
    lab = cluster(hosts=2, rails=2, rate=RATE)
    with job(lab, "p2p") as perf:
        assert_progress(perf)
        since = time.monotonic_ns()
        unplug(lab, host, 1)
        assert_given_up(lab, since)
        assert_progress(perf)
        healthy = time.monotonic_ns()
        plug(lab, host, 1)
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        carries(lab.nodes[0], "rail1")


def move_both(lab):
    """All rails of both hosts get other addresses, and neither can tell the other meanwhile."""
    with lab.inject(Carrier("h0:rail0")), lab.inject(Carrier("h0:rail1")):
        for host, node in enumerate(lab.nodes):
            for rail in range(lab.topology.rails):
                name, net = f"rail{rail}", node.address(rail).rsplit(".", 1)[0]
                node.run(["ip", "addr", "flush", "dev", name])
                node.run(["ip", "addr", "add", f"{net}.{70 + host}/24", "dev", name])


def test_both_ends_move_at_once_and_one_moves_back(cluster):
    lab = cluster(hosts=2, rails=2, rate=RATE)
    with job(lab) as perf:
        assert_progress(perf)
        move_both(lab)
        told = StatsEventKind.ALL_PATHS_DOWN
        wait_until(lambda: events_of(lab.nodes[0], told), PATIENCE_S, "all paths down")
        assert perf.running  # held
        for rail in range(2):
            lab.nodes[1].run(["ip", "addr", "flush", "dev", f"rail{rail}"])
            build.set_addresses(lab.topology, 1, f"rail{rail}", present=True)
        assert_progress(perf)


def test_both_ends_move_at_once_and_the_deadline_ends_it(cluster):
    lab = cluster(hosts=2, rails=2, rate=RATE)
    perf = lab.start_perf(
        *("ring", "--duration", "600", "--channels", "2", "--size", "1048576", "--wait", "block"),
        env={"FABRIC_DEADLINE": "5"},
    )
    perf.wait_started(PATIENCE_S)
    moved = time.monotonic_ns()
    move_both(lab)
    ends = perf.wait(PATIENCE_S)
    assert {end.status for end in ends} == {1}
    first = min(
        (row for rank in (0, 1) for row in perf.rows(rank) if row["type"] == "error"),
        key=lambda row: row["t_ns"],
    )
    assert first["t_ns"] - moved > 4.5e9  # held for as long as was asked
    text = "".join(perf.log(rank).read_text() for rank in (0, 1))
    assert "no path to peer 10." in text, text
    assert "(FABRIC_DEADLINE); the last to fail: rail" in text, text
    assert not any(rank.poll() is None for rank in perf.ranks)
