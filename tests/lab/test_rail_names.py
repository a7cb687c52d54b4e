"""Which devices and addresses become rails: the plugin's jobs, the daemon's links, real devices."""

import json
import time

import pytest
from test_daemon_faults import SLOW_S, ask, ready, states, weights

from lab.cluster import wait_until

BRIDGES = ["br-0a", "br-1b", "br-2c", "br-3d", "br-4e", "br-5f", "br-6a", "br-7b"]
JOB_S = 240


def addr(node, verb, address, rail, *words):
    node.run(["ip", "addr", verb, address, "dev", f"rail{rail}", *words])


def add_bridges(node):
    """As Docker makes them: the same addresses on every host."""
    for number, name in enumerate(BRIDGES, 18):
        node.run(["ip", "link", "add", name, "type", "bridge"])
        node.run(["ip", "addr", "add", f"172.{number}.0.1/16", "dev", name])
        node.run(["ip", "link", "set", name, "up"])


def ran(lab, ifname, **env):
    """A short job; returns what rank 0 logged of its rails, by device."""
    args = ("--size", "1M", "--iters", "4", "--verbose")
    perf = lab.start_perf("ring", *args, env={"NCCL_SOCKET_IFNAME": ifname, **env})
    for result in perf.wait(JOB_S):
        log = perf.log(result.rank).read_text()
        assert result.status == 0, log[-2000:]
        assert result.end["errors"] == result.end["corrupt_bytes"] == 0
    log = perf.log(0).read_text()
    (line,) = [line for line in log.splitlines() if "rails:" in line]
    words = line.partition("rails:")[2].split()
    return dict(zip(words[::2], words[1::2], strict=True)), log


def test_bridges_of_containers_are_no_rails_and_no_paths(cluster):
    lab = cluster(hosts=2, rails=2)
    for node in lab.nodes:
        add_bridges(node)
    rails, log = ran(lab, "")
    assert list(rails) == ["rail0", "rail1"]
    assert "no NICs" in log
    assert BRIDGES[0] in log
    # Asked for, they come last, and what does not fit is named. Both hosts have their addresses.
    rails, log = ran(lab, "br-,rail")
    assert list(rails) == ["rail0", "rail1", *BRIDGES[:6]]
    assert "there is room for 8 rails, which leaves out br-6a, br-7b" in log


def test_lists_with_blanks_labels_and_names_that_are_not_here(cluster):
    lab = cluster(hosts=2, rails=2)
    for number, node in enumerate(lab.nodes):
        addr(node, "add", f"10.0.0.{201 + number}/24", 0, "label", "rail0:1")
        node.run(["ip", "link", "property", "add", "dev", "rail1", "altname", f"fabricalt{number}"])
    both = ["rail0", "rail1"]
    assert list(ran(lab, "rail0, rail1")[0]) == both
    assert list(ran(lab, "rail0:0,rail1")[0]) == both
    assert list(ran(lab, "rail")[0]) == both, "a label is no device"
    rails, log = ran(lab, "rail1,rail9")
    assert list(rails) == ["rail1"]
    assert "NCCL_SOCKET_IFNAME: nothing here is rail9" in log
    assert list(ran(lab, "=fabricalt0,fabricalt1")[0]) == ["rail1"]


def link_local(lab):
    """Only fe80::RAIL:HOST on all rails; host → rail → address."""
    found = []
    for number, node in enumerate(lab.nodes, 1):
        found.append([f"fe80::{rail + 1}:{number}" for rail in range(lab.topology.rails)])
        for rail, address in enumerate(found[-1]):
            node.run(["ip", "addr", "flush", "dev", f"rail{rail}"])
            node.run(["sysctl", "-qw", f"net.ipv6.conf.rail{rail}.disable_ipv6=0"])
            addr(node, "add", f"{address}/64", rail, "nodad")
    return found


def test_a_job_over_link_local_rails(cluster):
    lab = cluster(hosts=2, rails=2)
    link_local(lab)
    rails, _ = ran(lab, "=rail0,rail1")
    assert list(rails) == ["rail0", "rail1"]
    assert all(address.startswith("[fe80::") for address in rails.values())


@pytest.mark.parametrize("zone", [True, False], ids=["zone", "no-zone"])
def test_probes_of_link_local_rails(cluster, zone):
    lab = cluster(hosts=3, rails=2)
    found = link_local(lab)

    def text(address, rail):
        return f"{address}%rail{rail}" if zone else address

    # One list for all hosts, their own entries included.
    peers = [
        {
            "host": node.name,
            "addresses": [{"rail": r, "address": text(a, r)} for r, a in enumerate(own)],
        }
        for node, own in zip(lab.nodes, found, strict=True)
    ]
    for node, own in zip(lab.nodes, found, strict=True):
        links = [
            {"netdev": f"rail{r}", "rail": r, "address": text(a, r)} for r, a in enumerate(own)
        ]
        node.start_prober()
        node.start_daemon(links=links, peers=peers)
    for node in lab.nodes:
        wait_until(lambda n=node: ready(n), 60, f"{node.name} hears everybody")
        paths = [path for link in ask(node, "links") for path in link["paths"]]
        assert len(paths) == 4, "two peers on each rail, none across rails"


def test_an_address_that_fails_dad_or_is_deprecated_is_not_taken(cluster):
    """The peers know rail0 by fd00::5NUMBER; others are there that come before it."""
    lab = cluster(hosts=3, rails=2)
    known = [f"fd00::5{number}" for number in range(3)]
    for node, address in zip(lab.nodes, known, strict=True):
        node.run(["ip", "addr", "flush", "dev", "rail0"])
        for key, value in (("disable_ipv6", 0), ("accept_dad", 1), ("dad_transmits", 1)):
            node.run(["sysctl", "-qw", f"net.ipv6.conf.rail0.{key}={value}"])
        addr(node, "add", f"{address}/64", 0, "nodad")
    first, owner, several = lab.nodes
    addr(owner, "add", "fd00::1/64", 0, "nodad")
    addr(first, "add", "fd00::1/64", 0)  # a duplicate
    addr(first, "add", "fd00::2/64", 0, "nodad", "preferred_lft", "0", "valid_lft", "forever")
    addr(several, "add", "fd00::99/64", 0, "nodad")

    def is_duplicate():
        shown = json.loads(first.run(["ip", "-j", "-6", "addr", "show", "dev", "rail0"]).stdout)
        return any(a.get("dadfailed") for a in shown[0]["addr_info"] if a["local"] == "fd00::1")

    wait_until(is_duplicate, SLOW_S, "duplicate address detection")
    peers = [
        {
            "host": node.name,
            "addresses": [
                {"rail": 0, "address": address},
                {"rail": 1, "address": node.address(1)},
            ],
        }
        for node, address in zip(lab.nodes, known, strict=True)
    ]
    for node, address in zip(lab.nodes, known, strict=True):
        links = [{"netdev": f"rail{rail}", "rail": rail} for rail in range(2)]
        if node is owner:
            links[0]["address"] = address
        node.start_prober()
        node.start_daemon(links=links, peers=peers)
    for node in lab.nodes:
        wait_until(lambda n=node: ready(n), 60, f"{node.name} hears everybody")
    said = "rail0 has fd00::52, fd00::99: fd00::52 is used; the key address of [[links]] chooses"
    assert said in (several.dir / "fabricd.log").read_text()
    assert "the key address" not in (owner.dir / "fabricd.log").read_text()
    time.sleep(6)  # a wrong choice had the link DOWN after 4 to 6 s
    assert states(first) == {"rail0": "up", "rail1": "up"}


def test_a_link_that_is_named_by_an_altname_is_the_devices(cluster):
    lab = cluster(hosts=3, rails=2)
    for node in lab.nodes:
        node.run(["ip", "link", "property", "add", "dev", "rail1", "altname", "fabricalt"])
    for node in lab.nodes:
        links = [
            {"netdev": "rail0", "rail": 0},
            {"netdev": "fabricalt", "rail": 1, "address": node.address(1)},
        ]
        node.start_prober()
        node.start_daemon(links=links)
    node = lab.nodes[0]
    wait_until(lambda: ready(node), 60, "it hears everybody")
    assert states(node) == {"rail0": "up", "rail1": "up"}
    ask(node, "drain", link="rail1", reason="test")
    wait_until(lambda: weights(node) == {"rail0": 1000, "rail1": 0}, SLOW_S, "the page says rail1")
