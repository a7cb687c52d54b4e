"""A switch port whose MTU is too small: small probes pass, large packets do not."""

import re
import time

import pytest
from pyroute2 import IPRoute
from test_daemon_faults import SLOW_S, ask, ready, rows, weights

from lab.cluster import wait_until
from lab.network import netns

JUMBO, SMALL = 9000, 1500
NAMED_S = 60
METRICS = "http://127.0.0.1:19200/metrics"
QUICK = {"hold": {"hold_down_s": 0.5, "probation_s": 1.0}}


def set_mtu(lab, host, rail, mtu):
    port = lab.topology.leaf_port(host, rail)
    netns.run_in(port.ns, lambda: _set_mtu(port.ifname, mtu))


def _set_mtu(ifname, mtu):
    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname=ifname)[0], mtu=mtu)


def link(node, netdev):
    return next(x for x in ask(node, "links") if x["netdev"] == netdev)


def path_state(node, netdev, peer):
    rail = link(node, netdev)["rail"]
    paths = link(node, netdev)["paths"]
    return next(p["state"] for p in paths if (p["peer"], p["peer_rail"]) == (peer, rail))


def large_packets(node, netdev):
    evidence = ask(node, "explain", link=netdev)["evidence"]
    return next(item["says"] for item in evidence if item["detector"] == "mtu")


def arrive_everywhere(said):
    """Large packets arrive on all tested paths, two or more (the cross-rail one is among them)."""
    counts = re.match(rf"{JUMBO}-byte packets arrive on (\d+) of (\d+) tested paths", said)
    return counts is not None and counts[1] == counts[2] and int(counts[1]) >= 2


@pytest.mark.nightly
def test_an_mtu_black_hole_is_named_steered_away_from_and_over_when_large_packets_pass(cluster):
    lab = cluster(hosts=3, rails=2)
    for node in lab.nodes:
        for rail in range(2):
            set_mtu(lab, node.index, rail, JUMBO)
            node.run(["ip", "link", "set", f"rail{rail}", "mtu", str(JUMBO)])
    lab.start_daemons(mode="steer", **QUICK)
    for node in lab.nodes:
        wait_until(lambda n=node: ready(n), SLOW_S, f"{node.name} hears everybody")
    faulty, sound = lab.nodes[1], [lab.nodes[0], lab.nodes[2]]
    wait_until(
        lambda: arrive_everywhere(large_packets(faulty, "rail0")),
        NAMED_S,
        "large packets pass",
    )
    began = time.monotonic_ns()
    set_mtu(lab, 1, 0, SMALL)
    wait_until(lambda: link(faulty, "rail0")["mtu_black_hole"], NAMED_S, "the black hole is named")
    wait_until(lambda: weights(faulty)["rail0"] == 0, SLOW_S, "it is steered away from")
    said = link(faulty, "rail0")["mtu_black_hole"]
    assert f"MTU black hole: {JUMBO}-byte packets do not arrive" in said
    assert "h0, h2" in said
    assert link(faulty, "rail0")["state"] == "down"
    assert ask(faulty, "status")["mtu_black_holes"] == {"rail0": said}
    assert ask(faulty, "explain", link="rail0")["rule"]["name"] == "mtu"
    body = faulty.fetch(METRICS)
    assert 'fabricd_link_mtu_black_hole{link="rail0",rail="0"} 1.0' in body
    assert 'fabricd_link_mtu_black_hole{link="rail1",rail="1"} 0.0' in body
    wait_until(
        lambda: any(
            row["to"] == "down" and "MTU black hole" in row["reason"]
            for row in rows(faulty, kind="link_state", link="rail0")
        ),
        SLOW_S,
        "the row",
    )
    for node in sound:  # the others lose one path, and no rail
        wait_until(lambda n=node: path_state(n, "rail0", "h1") == "down", NAMED_S, "the path")
        assert link(node, "rail0")["state"] == "up"
        assert link(node, "rail0")["mtu_black_hole"] == ""
        assert weights(node) == {"rail0": 1000, "rail1": 1000}
    set_mtu(lab, 1, 0, JUMBO)
    wait_until(lambda: not link(faulty, "rail0")["mtu_black_hole"], NAMED_S, "it is over")
    for node in lab.nodes:
        wait_until(lambda n=node: ready(n), NAMED_S, f"{node.name} is sound again")
    for node in lab.nodes:
        moves = rows(node, kind="link_state") + rows(node, kind="path_state")
        bad = [row for row in moves if row["to"] in ("down", "degraded")]
        assert all(row["mono_ns"] > began for row in bad), "nothing was wrong before"
        assert all("MTU black hole" in row["reason"] for row in bad)
        assert not [row for row in bad if row["link"] == "rail1"]
