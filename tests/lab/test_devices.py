"""Devices and addresses that come and go under a running job: devices made anew, devices that were
not there, all addresses of both ends at once. Real processes and packets, no daemon."""

import resource
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

from lab.cluster import wait_until
from lab.faults.catalog import Carrier
from lab.network import build
from telemetry.statspage import StatsEventKind

RATE = "200mbit"


def unplug(lab, host, rail):
    lab.nodes[host].run(["ip", "link", "del", f"rail{rail}"])


def plug(lab, host, rail, pause_s=0.0, *, down=False):
    """As the lab was built, but with an index of the kernel's choice. The index.

    For ``pause_s`` the device is up and has the address alone that the kernel gives it: a
    link-local one. ``down``: it gets its own address before it comes up.
    """
    node, leaf, name = lab.nodes[host], lab.topology.leaf_port(host, rail), f"rail{rail}"
    peer = ["peer", "name", leaf.ifname, "netns", leaf.ns]
    node.run(["ip", "link", "add", name, "type", "veth", *peer])
    for where, device in (([], name), (["-n", leaf.ns], leaf.ifname)):
        shaper = ["tbf", "rate", RATE, "burst", str(lab.topology.burst_bytes), "latency", "10ms"]
        node.run(["tc", *where, "qdisc", "add", "dev", device, "handle", "1:", "root", *shaper])
    node.run(["ip", "-n", leaf.ns, "link", "set", leaf.ifname, "master", "br0", "up"])
    if down:
        node.run(["ip", "addr", "add", f"{node.address(rail)}/24", "dev", name])
    node.run(["ip", "link", "set", name, "up"])
    time.sleep(pause_s)
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


@pytest.mark.parametrize("striped", [True, False], ids=["striped", "survivor"])
def test_a_device_that_was_not_there_joins_a_running_job(cluster, striped):
    lab = cluster(hosts=2, rails=3, rate=RATE)
    for host in (0, 1):
        unplug(lab, host, 2)
    env = {"FABRIC_STRIPE": "1"} if striped else {}
    with job(lab, env=env, channels=2) as perf:
        sender = lab.nodes[0]
        assert sorted(rails_of(sender)) == ["rail0", "rail1"]
        assert_progress(perf)
        # From the one's first address no path leads to the other's.
        plug(lab, 0, 2, pause_s=0.3)
        plug(lab, 1, 2, down=True)
        for node in lab.nodes:
            wait_until(
                lambda node=node: (
                    rails_of(node).get("rail2") is not None
                    and rails_of(node)["rail2"].live_paths > 0
                ),
                PATIENCE_S,
                "connections over the third rail",
            )
        if striped:
            carries(sender, "rail2")
        else:  # NCCL's devices stay what they were: nobody is at home there
            before = rails_of(sender)["rail2"].tx_bytes
            assert_progress(perf)
            assert rails_of(sender)["rail2"].tx_bytes - before < 1_000_000
            with lab.inject(Carrier("h0:rail0")):
                carries(sender, "rail2")
        # And it goes again as every rail does.
        since = time.monotonic_ns()
        unplug(lab, 1, 2)
        assert_given_up(lab, since)
        assert_progress(perf)
        healthy = time.monotonic_ns()
        plug(lab, 1, 2)
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "its return")


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
        # By one end at least: one that had nothing under way just then has lost nothing either.
        wait_until(
            lambda: any(events_of(node, told) for node in lab.nodes), PATIENCE_S, "all paths down"
        )
        assert perf.running  # held
        for rail in range(2):
            lab.nodes[1].run(["ip", "addr", "flush", "dev", f"rail{rail}"])
            build.set_addresses(lab.topology, 1, f"rail{rail}", present=True)
        assert_progress(perf)


@pytest.mark.nightly
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


def test_a_sender_that_vanishes_without_a_word_is_an_error_at_the_deadline(cluster):
    """The receiver has nothing under way: no connection of its own fails."""
    lab = cluster(hosts=2, rails=2, rate=RATE)
    perf = lab.start_perf(
        *("p2p", "--duration", "600", "--channels", "2", "--size", "1048576", "--wait", "block"),
        env={"FABRIC_DEADLINE": "5"},
    )
    perf.wait_started(PATIENCE_S)
    with lab.inject(Carrier("h0:rail0")), lab.inject(Carrier("h0:rail1")):
        perf.ranks[0].kill()
        wait_until(lambda: perf.ranks[1].poll() is not None, PATIENCE_S, "the receiver's end")
    assert perf.ranks[1].returncode == 1
    assert "(FABRIC_DEADLINE)" in perf.log(1).read_text()


def test_a_kernel_that_tells_no_addresses_is_asked_again(cluster):
    lab = cluster(hosts=2, rails=2, rate=RATE)
    with job(lab) as perf:
        assert_progress(perf)
        node, process = lab.nodes[1], perf.ranks[1]
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1, limits[1]))  # no socket for that
        since = time.monotonic_ns()
        new = node.address(1).rsplit(".", 1)[0] + ".77"
        node.run(["ip", "addr", "flush", "dev", "rail1"])
        node.run(["ip", "addr", "add", f"{new}/24", "dev", "rail1"])
        assert_given_up(lab, since)
        assert_progress(perf)
        assert new not in node.run(["ss", "-Htan"]).stdout
        healthy = time.monotonic_ns()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        assert new in node.run(["ss", "-Htn", "state", "established"]).stdout
        assert_progress(perf)


def test_an_ipv6_address_is_used_once_it_is_no_longer_tentative(cluster):
    lab = cluster(hosts=2, rails=2, rate=RATE)
    node = lab.nodes[1]
    for family in ("all", "rail1"):
        for name, value in (("accept_dad", 1), ("dad_transmits", 2)):
            node.run(["sysctl", "-qw", f"net.ipv6.conf.{family}.{name}={value}"])
    with job(lab, env={"NCCL_SOCKET_FAMILY": "AF_INET6"}) as perf:
        assert_progress(perf)
        address = node.address(1, 6)
        since = time.monotonic_ns()
        node.run(["ip", "addr", "del", f"{address}/64", "dev", "rail1"])
        assert_given_up(lab, since)
        new = f"{address.rsplit(':', 1)[0]}:77"
        node.run(["ip", "addr", "add", f"{new}/64", "dev", "rail1"])  # with detection of duplicates
        seen = node.run(["ip", "-6", "addr", "show", "dev", "rail1"]).stdout
        assert "tentative" in seen, seen
        healthy = time.monotonic_ns()
        assert_progress(perf)
        wait_until(
            lambda: new in node.run(["ss", "-Htn", "state", "established"]).stdout,
            PATIENCE_S,
            "connections of the new address",
        )
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        assert_progress(perf)
