"""Link and address messages of rtnetlink, as the kernel multicasts them."""

import asyncio
import os
import socket

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from fabricd.links import rtnl
from fabricd.links.inventory import Inventory
from fabricd.links.watcher import LinkWatcher
from lab.inputs import kernel_replies as kernel
from telemetry.counters.types import CounterError

LINK = kernel.link_news(7, "rail0", carrier=1)


def test_what_is_read_is_what_pyroute2_reads():
    (found,) = rtnl.parse(LINK)
    theirs = ifinfmsg(LINK)
    theirs.decode()
    assert found["index"] == theirs["index"] == 7
    assert found["flags"] == theirs["flags"]
    assert len(found["attrs"]) == 6
    for name, value in found["attrs"]:
        assert theirs.get_attr(name) == value, name


def test_links_and_addresses_of_this_machine_are_those_that_pyroute2_finds():
    with IPRoute() as route:
        theirs = Inventory()
        for message in (*route.get_links(), *route.get_addr()):
            theirs.take(message)
    ours = Inventory()
    for kind, size in ((18, 16), (22, 8)):  # RTM_GETLINK, RTM_GETADDR
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
            asked.bind((0, 0))
            head = (16 + size).to_bytes(4, "little") + kind.to_bytes(2, "little")
            asked.send(head + b"\x01\x03" + bytes(8 + size))  # NLM_F_REQUEST | NLM_F_DUMP
            done = False
            while not done:
                data = asked.recv(1 << 16)
                done = any(message.type == 3 for message in rtnl.messages(data))
                for message in rtnl.parse(data):
                    ours.take(message)
    assert ours.devices == theirs.devices
    assert ours.addresses == theirs.addresses
    assert "lo" in ours.devices


def test_an_address_comes_and_goes_in_both_families():
    inventory = Inventory()
    ten, v6 = b"\x0a\0\0\1", b"\xfd" + bytes(14) + b"\1"
    for data in (LINK, kernel.address_news(7, v6), kernel.address_news(7, ten)):
        for message in rtnl.parse(data):
            inventory.take(message)
    assert inventory.address_of("rail0") == "10.0.0.1"
    for message in rtnl.parse(kernel.address_news(7, ten, kind=21)):
        inventory.take(message)
    assert inventory.address_of("rail0") == "fd00::1"


def test_what_a_bridge_says_of_its_ports_is_not_the_link():
    assert rtnl.parse(kernel.link_news(7, "rail0", carrier=0, family=7)) == []


@pytest.mark.parametrize("data", [LINK[:-3], LINK[:20], b"\x11\0\0\0\x10\0" + bytes(11)])
def test_what_does_not_fit_is_refused(data):
    with pytest.raises((CounterError, ValueError)):
        rtnl.parse(data)


def test_a_storm_is_one_piece_of_news_and_damage_is_counted():
    watcher = LinkWatcher(Inventory())
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)
    for number in range(20):
        far.send(kernel.link_news(number % 2, f"rail{number % 2}", carrier=number & 1))
    far.send(os.urandom(3))
    told = [asyncio.run(watcher._hear(near))]
    near.close()
    far.close()
    assert told == [{"rail0", "rail1"}]
    assert watcher.refused == 1
    assert watcher.inventory.devices["rail1"].carrier
