"""Counter sources against this kernel: a veth pair in a namespace of its own."""

import socket
import subprocess
import time

import pytest
from pyroute2 import netns as pr_netns

from lab.network import netns
from telemetry.counters.sweep import Sweep
from telemetry.counters.types import Status

S = 10**9


def ip(ns, *argv):
    subprocess.run(["ip", "-n", ns, *argv], check=True, timeout=30)


def add_pair(ns):
    ip(ns, "link", "add", "a0", "type", "veth", "peer", "name", "b0")
    for name, address in (("a0", "10.77.0.1/24"), ("b0", "10.77.1.1/24")):
        ip(ns, "addr", "add", address, "dev", name)
        ip(ns, "link", "set", name, "up")


@pytest.fixture
def veth(lab_name):
    ns = f"{lab_name}-counters"
    pr_netns.create(ns)
    try:
        add_pair(ns)
        yield ns
    finally:
        pr_netns.remove(ns)


@pytest.fixture
def sweep(veth):
    opened = netns.run_in(veth, lambda: Sweep.open({"a0": ("rxe0", 1)}))
    yield Reader(veth, opened)
    opened.close()


class Reader:
    """Reads in the namespace; seconds are counted, not waited for."""

    def __init__(self, ns, sweep):
        self.ns, self.sweep, self.at_ns = ns, sweep, time.monotonic_ns()

    def read(self, seconds=1):
        self.at_ns += seconds * S
        return netns.run_in(self.ns, lambda: self.sweep.read(self.at_ns))["a0"]


def send(ns, packets):
    """Packets out of a0 that nobody answers: 100 bytes and Ethernet's 14."""

    def body():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
            link.bind(("a0", 0x88B5))  # an EtherType for experiments
            for _ in range(packets):
                link.send(bytes(12) + b"\x88\xb5" + bytes(100))

    netns.run_in(ns, body)


def test_what_a_veth_has_and_has_not(veth, sweep):
    statuses = {status.source: status for status in sweep.read().statuses}
    assert {source for source, status in statuses.items() if status.on} == {
        "link_stats",
        "ethtool_driver",
    }
    no_fec = Status("ethtool_fec", "a0", on=False, reason="not supported by the driver")
    assert statuses["ethtool_fec"] == no_fec
    assert statuses["ethtool_pause"].reason == "not supported by the driver"
    nothing = "the driver has none of the standard statistics"
    assert statuses["ethtool_standard"].reason == nothing
    assert statuses["ib_port"].reason == "no such device"
    assert not statuses["rdma_stat"].on
    assert statuses["rdma_stat"].reason


def test_link_statistics_count_what_was_sent(veth, sweep):
    sweep.read()
    send(veth, 50)
    steps = sweep.read().steps
    # The kernel itself may speak on a link that has just come up (neighbour discovery).
    assert 50 <= steps["tx_packets"].increase < 100
    assert steps["tx_bytes"].increase >= 50 * 114
    assert steps["tx_packets"].inexact == ""
    assert steps["rcv_discards"].increase == 0


def test_a_device_that_is_gone_and_comes_back(veth, sweep):
    sweep.read()
    ip(veth, "link", "del", "a0")
    gone = {status.source: status for status in sweep.read().statuses}
    assert gone["link_stats"] == Status("link_stats", "a0", on=False, reason="no such device")
    assert gone["ethtool_driver"].reason == "no such device"
    add_pair(veth)
    back = sweep.read(30)
    assert [update.reborn for update in back.updates] == [True, True]
    assert back.steps == {}
    send(veth, 7)
    assert 7 <= sweep.read().steps["tx_packets"].increase < 57
