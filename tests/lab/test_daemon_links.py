"""fabricd beyond veth and IPv4 on a good disk: hot-plug, IPv6, a full disk, two daemons."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from fabricd.cli import client
from fabricd.steer.page import PageError, decode
from lab.cluster import wait_until
from lab.faults.catalog import BlackHole, Carrier
from lab.network import netns

SLOW_S = 30.0


def ask(node, op, **request):
    return client.request(node.run_dir / "ctl.sock", {"op": op, **request})


def link(node, netdev):
    try:
        return next(x for x in ask(node, "links") if x["netdev"] == netdev)
    except client.DaemonError:
        return None


def state(node, netdev):
    found = link(node, netdev)
    return found and found["state"]


def weights(node):
    while True:
        with contextlib.suppress(PageError):
            page = decode((node.run_dir / "steer").read_bytes())
            return {rail.netdev: rail.weight for rail in page.rails}


def all_heard(node):
    try:
        links = ask(node, "links")
    except client.DaemonError:
        return False
    return all(p["state"] == "up" for x in links for p in x["paths"]) and links[0]["paths"]


def answers(node):
    try:
        return ask(node, "status")["prober"]["up"]
    except client.DaemonError:
        return False


def test_device_that_comes_goes_and_comes_again(cluster):
    lab = cluster(hosts=2, rails=1)
    node = lab.nodes[0]
    node.start_prober()
    node.start_daemon(
        links=[
            {"netdev": "rail0", "rail": 0, "address": node.address(0)},
            {"netdev": "hot9", "rail": 9},
        ],
        hold={"hold_down_s": 0.3, "probation_s": 0.3},
    )
    wait_until(lambda: state(node, "rail0") == "up", SLOW_S, "rail0 is up")
    assert link(node, "hot9")["state"] == "unknown", "never seen is not a failure"
    assert weights(node)["hot9"] == 0

    def plug(address):
        node.run(["ip", "link", "add", "hot9", "type", "veth", "peer", "name", "far9"])
        node.run(["ip", "addr", "add", address, "dev", "hot9"])
        node.run(["ip", "link", "set", "far9", "up"])
        node.run(["ip", "link", "set", "hot9", "up"])

    plug("10.9.0.1/24")
    wait_until(lambda: weights(node)["hot9"] == 1000, SLOW_S, "it carries")
    wait_until(lambda: link(node, "hot9")["address"] == "10.9.0.1", SLOW_S, "address is found")
    wait_until(lambda: state(node, "hot9") == "up", SLOW_S, "it is up")  # else it cannot go down
    before = link(node, "hot9")["flaps"]
    node.run(["ip", "link", "del", "hot9"])
    wait_until(lambda: weights(node)["hot9"] == 0, SLOW_S, "it is gone")
    # IFF_UP goes before the device: seen alone, that is an operator's doing.
    assert state(node, "hot9") in {"down", "admin", "unknown"}
    wait_until(lambda: link(node, "hot9")["flaps"] == before + 1, SLOW_S, "one flap")
    plug("10.9.0.7/24")
    wait_until(lambda: weights(node)["hot9"] == 1000, SLOW_S, "the new device carries")
    wait_until(lambda: link(node, "hot9")["address"] == "10.9.0.7", SLOW_S, "its new address")
    assert weights(node)["rail0"] == 1000


def test_found_addresses_are_known_before_peers_probe_them(cluster):
    """Peers probe already when this daemon starts, and none of their packets is refused."""
    lab = cluster(hosts=3, rails=2)
    node, *others = lab.nodes
    found = [{"netdev": f"rail{r}", "rail": r} for r in (0, 1)]
    for other in others:
        other.start_prober()
        other.start_daemon(links=found)
    for other in others:
        wait_until(lambda n=other: answers(n), SLOW_S, f"{other.name} probes")
    node.start_prober()
    node.start_daemon(links=found)
    for each in lab.nodes:
        wait_until(lambda n=each: all_heard(n), SLOW_S, f"{each.name} hears everybody")
    for each in lab.nodes:
        refused = ask(each, "status")["prober"]["refused"]
        assert refused["auth"] == 0, refused
        assert [x["address"] for x in ask(each, "links")] == [each.address(r) for r in (0, 1)]


def test_probes_over_ipv6(cluster):
    lab = cluster(hosts=4, rails=2)
    for node in lab.nodes:
        node.start_prober()
    for node in lab.nodes:
        others = [n for n in lab.nodes if n is not node]
        node.start_daemon(
            links=[
                {"netdev": f"rail{r}", "rail": r, "address": node.address(r, 6)} for r in (0, 1)
            ],
            peers=[
                {
                    "host": n.name,
                    "addresses": [
                        {"rail": r, "address": n.address(r, family)}
                        for r in (0, 1)
                        for family in (4, 6)
                    ],
                }
                for n in others
            ],
            hold={"hold_down_s": 0.3, "probation_s": 0.3},
        )
    for node in lab.nodes:
        wait_until(lambda n=node: all_heard(n), SLOW_S, f"{node.name} hears everybody")
    node, peer = lab.nodes[:2]
    with lab.inject(BlackHole("h0:rail0")):
        wait_until(lambda: weights(node)["rail0"] == 0, SLOW_S, "black hole over IPv6")

        def exceptions():
            with contextlib.suppress(PageError):
                page = decode((peer.run_dir / "steer").read_bytes())
                return {p.remote for p in page.paths if p.netdev == "rail0"}
            return set()

        wait_until(
            lambda: {str(ip_address(node.address(0, f))) for f in (4, 6)} <= exceptions(),
            SLOW_S,
            "the exception is for both families",
        )


@pytest.mark.nightly
def test_full_disk_does_not_stop_steering_and_no_flap_is_lost(cluster):
    lab = cluster(hosts=2, rails=2)
    node = lab.nodes[0]
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "fabric-test", node.state_dir],
        check=True, timeout=20,
    )  # fmt: skip
    try:
        node.start_prober()
        node.start_daemon(hold={"hold_down_s": 0.2, "probation_s": 0.2})
        wait_until(lambda: state(node, "rail1") == "up", SLOW_S, "up")
        filler = node.state_dir / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(os.urandom(4096))
        for _ in range(3):  # each is kept down longer than the last
            began = time.monotonic()
            with lab.inject(Carrier("h0:rail1")):
                wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steers on a full disk")
                assert time.monotonic() - began < 2.0
            wait_until(lambda: weights(node)["rail1"] == 1000, 90, "and back")
        status = ask(node, "status")["timeline"]
        assert status["failures"] > 0, "the disk really was full"
        assert link(node, "rail1")["flaps"] == 3
        filler.unlink()

        def counted():
            rows = ask(node, "timeline", kind="flap", link="rail1")
            return sum(row["count"] for row in rows)

        wait_until(lambda: counted() == 3, SLOW_S, "all three are stored later")
        assert ask(node, "status")["timeline"]["dropped"] == 0
        assert list(node.state_dir.glob("*unusable*")) == []
    finally:
        node.stop_services()
        subprocess.run(["umount", "-l", node.state_dir], check=True, timeout=20)


@pytest.mark.parametrize("family", [4, 6])
def test_probes_ride_the_class_that_was_asked_for(cluster, family):
    lab = cluster(hosts=2, rails=1)
    a, b = lab.nodes
    for node in lab.nodes:
        node.start_prober()
        peer = lab.nodes[1 - node.index]
        links = [{"netdev": "rail0", "rail": 0, "address": node.address(0, family)}]
        there = [{"rail": 0, "address": peer.address(0, family)}]
        peers = [{"host": peer.name, "addresses": there}]
        node.start_daemon(links=links, peers=peers)
    for node in lab.nodes:
        wait_until(lambda n=node: all_heard(n), SLOW_S, "all paths heard")
    assert classes(b, family) == {0}
    text = a.config_path.read_text()
    a.config_path.write_text(text.replace("[probe]", "[probe]\ndscp = 26"))
    assert ask(a, "reload")["changed"] == ["probe.dscp"]
    wait_until(lambda: 26 in classes(b, family), SLOW_S, "the prober took it")
    wait_until(lambda: all_heard(a) and all_heard(b), SLOW_S, "and is heard as before")


def classes(node, family):
    """DSCP of the next probes that come in on rail0."""
    seen: list[int] = []

    def listen():
        kind = socket.htons(0x0800 if family == 4 else 0x86DD)
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, kind) as tap:
            tap.bind(("rail0", socket.ntohs(kind)))
            tap.settimeout(SLOW_S)
            while len(seen) < 10:
                packet, where = tap.recvfrom(2048)
                head = 20 if family == 4 else 40
                if where[2] == socket.PACKET_OUTGOING or len(packet) != head + 8 + 192:
                    continue
                first = int.from_bytes(packet[:2], "big")
                seen.append((first & 0xFF if family == 4 else first >> 4 & 0xFF) >> 2)

    netns.run_in(node.ns, listen)
    return set(seen)


def test_second_daemon_does_not_start(cluster):
    lab = cluster(hosts=2, rails=1)
    node = lab.nodes[0]
    node.start_daemon()
    wait_until(lambda: link(node, "rail0") is not None, SLOW_S, "the first runs")
    second = node.run(
        [sys.executable, "-m", "fabricd.daemon", "--config", str(node.config_path)], check=False
    )
    assert second.returncode == 1
    assert "another fabricd runs" in second.stderr
    assert link(node, "rail0") is not None


@pytest.mark.alone
def test_idle_daemon_is_cheap(cluster):
    lab = cluster(hosts=4, rails=4)
    lab.start_daemons()
    node = lab.nodes[0]
    wait_until(lambda: all_heard(node), SLOW_S, "everybody is heard")
    time.sleep(2)

    def cpu_s():
        fields = Path(f"/proc/{node.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = cpu_s(), time.monotonic()
    time.sleep(8)
    share = (cpu_s() - before) / (time.monotonic() - began)
    assert share < 0.08, "2 % on a quiet machine; this one is shared"
