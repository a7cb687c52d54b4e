"""LLDP on the wire: frames that a switch's port sends, and what a live daemon makes of them."""

import shutil
import socket
import struct

import pytest
from test_daemon_links import SLOW_S, all_heard, ask, link

from fabricd.links import lldp
from lab.cluster import wait_until
from lab.faults.catalog import LeafDown
from lab.network import netns

pytestmark = pytest.mark.skipif(
    shutil.which("lldpctl") is not None, reason="lldpd of this machine would be asked instead"
)


def tlv(kind, value):
    return struct.pack("!H", kind << 9 | len(value)) + value


def frame(name, port, ttl=120):
    """As a switch sends it: chassis (MAC), port (interface name), time to live, system name."""
    tlvs = (
        tlv(1, b"\x04\x02\x00\x00\x00\x00\x01")
        + tlv(2, b"\x05" + port)
        + tlv(3, struct.pack("!H", ttl))
    )
    tlvs += tlv(5, name) + tlv(0, b"")
    head = lldp.MULTICAST + b"\x02\x00\x00\x00\x00\x01" + lldp.ETHERTYPE.to_bytes(2, "big")
    return (head + tlvs).ljust(60, b"\0")


def send(lab, host, rail, data):
    """Out of the leaf's port that the host is plugged into."""
    port = lab.topology.leaf_port(host, rail)

    def go():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind((port.ifname, 0))
            out.send(data)

    netns.run_in(port.ns, go)


def plugged(node, netdev):
    found = link(node, netdev)
    return found and (found["leaf"], found["leaf_port"])


def told(lab, rail, data, node, expected):
    """Send until it is known: the daemon may not listen yet."""

    def known():
        send(lab, 0, rail, data)
        return plugged(node, f"rail{rail}") == expected

    wait_until(known, SLOW_S, f"rail{rail} is plugged into {expected}")


def test_a_switch_that_names_itself_is_known_and_blamed_by_its_name(cluster):
    lab = cluster(hosts=4, rails=2)
    lab.start_daemons(topology={"lldp": True})
    node = lab.nodes[0]
    wait_until(lambda: all_heard(node), SLOW_S, "all paths are heard")
    assert ask(node, "status")["lldp"] == "packet socket"
    told(lab, 0, frame(b"leaf-a1", b"Ethernet1/7"), node, ("leaf-a1", "Ethernet1/7"))
    told(lab, 1, frame(b"leaf-b1", b"Ethernet1/9"), node, ("leaf-b1", "Ethernet1/9"))
    for other in lab.nodes[1:]:
        assert plugged(other, "rail0") in (("", ""), None), "the frame goes no further"
    for bad in (b"", frame(b"x", b"y")[:20], frame(b"evil", b"")):
        send(lab, 0, 0, bad.ljust(14, b"\0"))
    assert plugged(node, "rail0") == ("leaf-a1", "Ethernet1/7")
    with lab.inject(LeafDown("leaf0")):
        wait_until(
            lambda: any(
                row["data"]["element"] == "leaf-a1" for row in ask(node, "timeline", kind="located")
            ),
            SLOW_S, "the leaf is blamed by the name that it gave itself",
        )  # fmt: skip
    told(lab, 1, frame(b"leaf-b1", b"Ethernet1/9", ttl=0), node, ("", ""))


def test_a_reload_begins_with_lldp_and_ends_it(cluster):
    lab = cluster(hosts=2, rails=1)
    node = lab.nodes[0]
    node.start_daemon()
    wait_until(lambda: link(node, "rail0") is not None, SLOW_S, "it answers")
    config = node.config_path.read_text()
    node.config_path.write_text(config + "\n[topology]\nlldp = true\n")
    assert ask(node, "reload")["changed"] == ["topology.lldp"]
    told(lab, 0, frame(b"leaf-a1", b"e7"), node, ("leaf-a1", "e7"))
    node.config_path.write_text(config)
    ask(node, "reload")
    assert plugged(node, "rail0") == ("", "")
    assert ask(node, "status")["lldp"] == "off"
