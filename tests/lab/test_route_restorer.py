"""Routes of a lab's host come back with its rail, whatever happened to the rail meanwhile."""

import json
import subprocess
import threading
import time

import pytest

from lab.cluster import Cluster

SLOW_S = 60.0


@pytest.fixture
def lab(lab_name):
    with Cluster(lab_name, hosts=2, rails=2) as made:
        yield made


def ip(node, *words):
    return node.run(["ip", *words]).stdout


def routes(node, rail):
    """Of both families, in the rail's own table."""
    return [
        (route["dst"], route.get("gateway"))
        for family in ("-4", "-6")
        for route in json.loads(ip(node, family, "-j", "route", "show", "table", str(100 + rail)))
    ]


def until(ready, what):
    end = time.monotonic() + SLOW_S
    while not ready():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def restorers():
    return [thread for thread in threading.enumerate() if thread.name == "route restorer"]


def test_a_rail_that_left_and_came_back_without_an_address_does_not_end_the_restorer(lab):
    """It died of NetlinkError 22: the routes have a source address that is not there."""
    node = lab.nodes[0]
    before = sorted(routes(node, 0)), sorted(routes(node, 1))
    assert before[0]
    aside = f"aside-{lab.topology.name}"
    subprocess.run(["ip", "netns", "add", aside], check=True)
    try:
        ip(node, "link", "set", "rail0", "netns", aside)
        ip(node, "link", "set", "rail1", "down")
        ip(node, "link", "set", "rail1", "up")
        until(lambda: sorted(routes(node, 1)) == before[1], "rail1 has its routes")
        subprocess.run(["ip", "-n", aside, "link", "set", "rail0", "netns", node.ns], check=True)
        ip(node, "link", "set", "rail0", "up")
    finally:
        subprocess.run(["ip", "netns", "del", aside], check=True)
    ip(node, "link", "set", "rail1", "down")
    ip(node, "link", "set", "rail1", "up")
    until(lambda: sorted(routes(node, 1)) == before[1], "the restorer lives")
    assert len(restorers()) == 1
    for address in lab.topology.addresses("host", 0):
        if address.ifname == "rail0":
            ip(node, "addr", "add", f"{address.ip}/{address.prefix}", "dev", "rail0", "nodad")
    until(lambda: sorted(routes(node, 0)) == before[0], "its addresses bring its routes")
