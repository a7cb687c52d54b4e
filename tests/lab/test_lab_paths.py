"""Paths: same rail, across rails over both spines, IPv6, shaping."""

import json
import subprocess
import time

import pytest

from lab.cluster import wait_until
from lab.faults.catalog import Carrier
from lab.observe.traffic import delivered

N = 200


BURST = 64 << 10  # of the shaper


def received(node, rail):
    path = f"/sys/class/net/rail{rail}/statistics/rx_bytes"
    return int(node.run(["cat", path]).stdout)


def tx_packets(ns, ifname):
    path = f"/sys/class/net/{ifname}/statistics/tx_packets"
    done = subprocess.run(
        ["ip", "netns", "exec", ns, "cat", path], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.parametrize("family", [4, 6])
def test_every_rail_of_every_host_reaches_every_other(cluster, family):
    lab = cluster(hosts=3, rails=3)
    for a in lab.nodes:
        for b in lab.nodes:
            if a is b:
                continue
            for rail in range(3):
                for to_rail in range(3):
                    got = delivered(a, b, 5, rail=rail, to_rail=to_rail, family=family)
                    assert got == 5, (a.name, rail, b.name, to_rail)


@pytest.mark.parametrize("family", [4, 6])
def test_cross_rail_goes_over_both_spines(cluster, family):
    lab = cluster(hosts=2, rails=2)
    leaf1, leaf0 = lab.topology.ns("leaf", 1), lab.topology.ns("leaf", 0)
    before = [tx_packets(leaf1, f"spine{s}") for s in (0, 1)]
    down = tx_packets(leaf0, "h1")
    assert delivered(*lab.nodes, 600, rail=1, to_rail=0, family=family, flows=200) == 600
    spread = [tx_packets(leaf1, f"spine{s}") - b for s, b in zip((0, 1), before, strict=True)]
    # 200 flows over two spines: a share under a quarter has a chance of 1 in 10^12.
    assert min(spread) >= 150
    assert sum(spread) >= 600
    assert tx_packets(leaf0, "h1") - down >= 600


def test_rail_only_has_no_cross_rail_path(cluster):
    lab = cluster(hosts=2, rails=2, rail_only=True)
    assert delivered(*lab.nodes, N, rail=0) == N
    assert delivered(*lab.nodes, 20, rail=1, to_rail=0) == 0


def test_only_cross_rail_is_left(cluster):
    """A has lost rail 0 and B rail 1: the pair (A rail 1, B rail 0) still carries."""
    lab = cluster(hosts=2, rails=2)
    a, b = lab.nodes
    with lab.inject(Carrier("h0:rail0")), lab.inject(Carrier("h1:rail1")):
        assert delivered(a, b, N, rail=0) == 0
        assert delivered(a, b, N, rail=1) == 0
        assert delivered(a, b, N, rail=1, to_rail=0) == N
        assert delivered(b, a, N, rail=0, to_rail=1) == N


def test_a_rail_answers_only_for_itself(cluster):
    """A packet for rail 1's address that comes in by rail 0 is not accepted."""
    lab = cluster(hosts=2, rails=2)
    a, b = lab.nodes
    mac = b.run(["cat", "/sys/class/net/rail0/address"]).stdout.strip()
    a.run(["ip", "route", "add", "10.1.0.2/32", "dev", "rail0", "table", "100"])
    a.run(["ip", "neigh", "replace", "10.1.0.2", "lladdr", mac, "dev", "rail0"])
    assert delivered(a, b, 50, rail=0, to_rail=1) == 0
    a.run(["ip", "neigh", "del", "10.1.0.2", "dev", "rail0"])
    done = a.run(["ping", "-c2", "-i0.2", "-W1", "-I", "10.0.0.1", "10.1.0.2"], check=False)
    assert done.returncode != 0, "no ARP answer by rail 0 for rail 1's address"


def test_links_are_shaped(cluster):
    lab = cluster(hosts=2, rails=2, rate="100mbit")
    a, b = lab.nodes
    servers = [b.popen(["iperf3", "-s", "-1", "-B", b.address(r)], stdout=-3) for r in (0, 1)]
    listening = lambda: len(b.run(["ss", "-Hltn", "sport = :5201"]).stdout.splitlines()) == 2  # noqa: E731
    wait_until(listening, 60, "the servers listen")
    # What the kernel let through, in a time that is no longer than what we measure.
    began = time.monotonic()
    before = [received(b, r) for r in (0, 1)]
    clients = [
        a.popen(["iperf3", "-c", b.address(r), "-B", a.address(r), "-t2", "-J"], stdout=-1)
        for r in (0, 1)
    ]
    reports = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
    through = [received(b, r) - x for r, x in zip((0, 1), before, strict=True)]
    took = time.monotonic() - began
    for report, got in zip(reports, through, strict=True):
        assert got <= 100e6 / 8 * took + BURST
        sent = report["end"]["sum_received"]["bytes"]
        assert got >= sent, "all of it came by that rail"
        assert report["end"]["sum_received"]["bits_per_second"] > 40e6, "and no other limit"
    for server in servers:
        server.wait(60)


def test_processes_see_the_sysfs_of_their_host(cluster):
    lab = cluster(hosts=1, rails=3)
    listing = lab.nodes[0].run(["ls", "/sys/class/net"]).stdout.split()
    assert sorted(listing) == ["lo", "rail0", "rail1", "rail2"]
