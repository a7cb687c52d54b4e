"""Links that probes do not watch: said everywhere, and steered away by nobody."""

import subprocess
import sys
import time

import pytest
from test_daemon_faults import SLOW_S, ask, prober_in_use, ready, rows, started, states, weights

from fabricd.cli import client
from lab.cluster import wait_until

PORT = 9200
METRICS = "http://127.0.0.1:19200/metrics"

# A user without rights who binds the rail's probe port as soon as the prober lets go of it.
MALLORY = f"""
import os, socket, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
mallory = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mallory.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
mallory.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
while True:
    try:
        mallory.bind((sys.argv[1], {PORT}))
        break
    except OSError:
        time.sleep(0.0002)
print("bound", flush=True)
time.sleep(600)
"""


def probe_state(node, netdev):
    """None while the daemon does not answer."""
    try:
        found = next(x for x in ask(node, "links") if x["netdev"] == netdev)
    except (client.DaemonError, StopIteration):
        return None
    return found["probe_state"]


def metric_states(node, netdev):
    """The states of which the metric is 1."""
    body = node.fetch(METRICS).splitlines()
    lines = [x for x in body if x.startswith(f'fabricd_link_probe_state{{link="{netdev}"')]
    assert len(lines) == 4, lines
    return [line.split('state="')[1].split('"')[0] for line in lines if line.endswith(" 1.0")]


def shown(node, *words):
    """What ``fabricctl`` prints."""
    program = [sys.executable, "-m", "fabricd.cli", *words]
    return node.run([*program, "--socket", str(node.run_dir / "ctl.sock")]).stdout


def told(node, netdev):
    return [row["data"]["state"] for row in rows(node, kind="probing", link=netdev)]


def test_a_stolen_probe_port_is_a_state_a_row_and_a_metric_until_it_is_given_back(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    wait_until(lambda: probe_state(node, "rail0") == "heard", SLOW_S, "the first look")
    address = node.address(0)
    mallory = node.popen([sys.executable, "-c", MALLORY, address], stdout=subprocess.PIPE)
    try:
        node.prober.stop()
        assert mallory.stdout.readline() == "bound\n"
        node.start_prober()
        wait_until(lambda: probe_state(node, "rail0") == "unbound", SLOW_S, "rail0 is unbound")
        assert probe_state(node, "rail1") == "heard"
        assert metric_states(node, "rail0") == ["unbound"]
        assert metric_states(node, "rail1") == ["heard"]
        why = f"another process holds UDP port {PORT} of {address}"
        assert why in ask(node, "status")["unwatched"]["rail0"]
        document = ask(node, "explain", link="rail0")
        assert document["rule"]["name"] == "carrier-only"
        assert why in document["unwatched"]
        for words in (["status"], ["links"], ["explain", "rail0"]):
            text = " ".join(shown(node, *words).split())
            assert "probe socket not bound" in text, words
            assert "nothing speaks against it" not in text or words == ["status"]
        # Not known to be broken: it carries as before.
        assert (states(node)["rail0"], weights(node)["rail0"]) == ("up", 1000)
        began = time.monotonic()
    finally:
        mallory.kill()
        mallory.wait()
        mallory.stdout.close()
    wait_until(lambda: probe_state(node, "rail0") == "heard", SLOW_S, "the port is ours again")
    took = time.monotonic() - began
    wait_until(lambda: told(node, "rail0")[-1:] == ["heard"], SLOW_S, "the row of the return")
    assert told(node, "rail0")[0] == "unbound"
    assert metric_states(node, "rail0") == ["heard"]
    assert ask(node, "explain", link="rail0")["rule"]["name"] == "healthy"
    assert took < SLOW_S


@pytest.mark.nightly
def test_rails_on_which_nothing_was_ever_heard_are_told(cluster):
    """Incoming probes dropped, a rail without an address, two NICs with each other's name."""
    lab = cluster(hosts=4, rails=2)
    deaf, bare, swapped, sound = lab.nodes
    deaf.run(["nft", "add table inet deaf; add chain inet deaf in "
              "{ type filter hook input priority 0; }; "
              f'add rule inet deaf in iifname "rail0" udp dport {PORT} drop'])  # fmt: skip
    bare.run(["ip", "address", "flush", "dev", "rail1"])
    for before, after in (("rail0", "spare"), ("rail1", "rail0"), ("spare", "rail1")):
        swapped.run(["ip", "link", "set", before, "down"])
        swapped.run(["ip", "link", "set", before, "name", after])
    for netdev in ("rail0", "rail1"):
        swapped.run(["ip", "link", "set", netdev, "up"])
    own = {"links": [{"netdev": f"rail{r}", "rail": r} for r in range(2)]}
    for node in lab.nodes:
        node.start_prober()
        node.start_daemon(**(own if node is bare else {}))
    wait_until(lambda: prober_in_use(sound) and bool(rows(sound)), SLOW_S, "they run")

    for node, netdev, state in (
        (deaf, "rail0", "never_heard"),
        (bare, "rail1", "unbound"),
        (swapped, "rail0", "never_heard"),
        (swapped, "rail1", "never_heard"),
    ):
        wait_until(
            lambda n=node, d=netdev, s=state: probe_state(n, d) == s, 90, f"{node.name} {netdev}"
        )
        assert metric_states(node, netdev) == [state]
        wait_until(lambda n=node, d=netdev: told(n, d), SLOW_S, "the row")
        assert told(node, netdev) == [state]
        assert "carrier only" in ask(node, "status")["unwatched"][netdev]
        document = ask(node, "explain", link=netdev)
        assert "nothing speaks against it" not in document["rule"]["text"]
        assert any(item.get("unwatched") for item in document["evidence"])
        assert weights(node)[netdev] == 1000, "not steered away for that"
    for netdev in ("rail0", "rail1"):
        assert probe_state(sound, netdev) == "heard"
        assert told(sound, netdev) == []
    assert ask(sound, "status")["unwatched"] == {}
    deaf.run(["nft", "delete table inet deaf"])
    wait_until(lambda: probe_state(deaf, "rail0") == "heard", SLOW_S, "heard")
    wait_until(lambda: told(deaf, "rail0") == ["never_heard", "heard"], SLOW_S, "the row")
    wait_until(lambda: not ready(deaf) or states(deaf)["rail0"] == "up", SLOW_S, "it is up")
