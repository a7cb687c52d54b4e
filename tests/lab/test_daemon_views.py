"""What hosts tell each other: byes, links that peers expect, and where a fault is, live."""

import contextlib
import json
import signal
import time

import pytest
from test_daemon_faults import READY_S, SLOW_S, ask, ctl, ready, rows, started, states, weights

from fabricd.cli import client
from lab.cluster import wait_until
from lab.faults.catalog import BlackHole, Carrier, LeafDown, SpineDown

LOST = {"down", "suspect", "degraded"}


def bad_moves(node, since_ns):
    """Transitions that say something is wrong."""
    moves = rows(node, kind="link_state") + rows(node, kind="path_state")
    return [row for row in moves if row["mono_ns"] >= since_ns and row["to"] in LOST]


def crossing(node):
    """Peers that the node probes across rails."""
    links = ask(node, "links")
    return {p["peer"] for x in links for p in x["paths"] if p["peer_rail"] != x["rail"]}


def link_states(node):
    """Empty while the daemon is not there yet."""
    try:
        return states(node)
    except client.DaemonError:
        return {}


def said(node, text):
    return any(text in row["reason"] for row in rows(node, kind="prober"))


def test_who_leaves_by_intent_is_no_fault(cluster):
    lab = started(cluster)
    leaver, others = lab.nodes[1], [lab.nodes[0], *lab.nodes[2:]]
    since = time.monotonic_ns()
    leaver.prober.stop()
    for node in others:
        wait_until(lambda n=node: said(n, "h1: bye on rail0, rail1"), SLOW_S, "the bye")
        assert ask(node, "status")["silent_hosts"] == []
        assert set(states(node).values()) == {"up"}
    leaver.start_prober()
    for node in others:
        wait_until(lambda n=node: said(n, "h1: probes again"), SLOW_S, "the return")
    # A reload that takes paths away at one end: across rails they are one-sided from now on.
    leaver.write_config({"probe": {"cross_rail_peers": 0}})
    leaver.daemon.kill(signal.SIGHUP)
    wait_until(lambda: not crossing(leaver), SLOW_S, "the reload")
    touched = [n for n in others if "h1" in crossing(n)]
    assert touched
    for node in touched:
        wait_until(
            lambda n=node: any(p["gone"] for x in ask(n, "links") for p in x["paths"]),
            SLOW_S,
            "the path is gone by intent",
        )
    time.sleep(1.5)
    for node in others:
        assert bad_moves(node, since) == []
        assert set(weights(node).values()) == {1000}


def test_a_link_never_heard_is_down_once_two_peers_say_so(cluster):
    lab = cluster(hosts=4, rails=2)
    with lab.inject(BlackHole("h0:rail1")):
        lab.start_daemons(mode="steer", hold={"hold_down_s": 0.5, "probation_s": 1.0})
        for node in lab.nodes[1:]:
            wait_until(lambda n=node: set(link_states(n).values()) == {"up"}, READY_S, "up")
        node = lab.nodes[0]
        wait_until(lambda: link_states(node).get("rail1") == "down", READY_S, "peers say so")
        link = next(x for x in ask(node, "links") if x["netdev"] == "rail1")
        assert link["reason"].startswith("never heard anything, though ")
        assert weights(node) == {"rail0": 1000, "rail1": 0}
        # The others' own links are none the worse for it.
        for other in lab.nodes[1:]:
            wait_until(lambda n=other: set(states(n).values()) == {"up"}, READY_S, "settled")
    wait_until(lambda: weights(node)["rail1"] == 1000, READY_S, "it is heard at last")


def blamed(node, since_ns):
    """(part, element) → confidence, of all that the node's timeline says since then."""
    return {
        (row["data"]["part"], row["data"]["element"]): row["data"]["confidence"]
        for row in rows(node, kind="located")
        if row["mono_ns"] >= since_ns and row["data"]["part"] != "unknown"
    }


def recovered(lab):
    for node in lab.nodes:
        wait_until(lambda n=node: ready(n), READY_S, f"{node.name} hears everybody again")


FAULTS = {
    "own cable, carrier up": ([BlackHole("h0:rail0")], ("link", "h0/0")),
    "own cable, no carrier": ([Carrier("h0:rail0")], ("link", "h0/0")),
    "a peer's NIC": ([BlackHole("h1:rail2")], ("link", "h1/2")),
    "a leaf, all ports dark": ([LeafDown("leaf1")], ("leaf", "rail1")),
    "a leaf that drops all": ([BlackHole(f"h{i}:rail1") for i in range(4)], ("leaf", "rail1")),
}


def located(node, *sockets):
    return json.loads(ctl(node, "locate", "--json", *sockets).stdout)


IN_CI = ("a peer's NIC",)


@pytest.mark.parametrize(
    "what",
    [pytest.param(one, marks=() if one in IN_CI else pytest.mark.nightly) for one in FAULTS],
)
def test_each_fault_is_blamed_right_from_the_live_view(cluster, what):
    faults, expected = FAULTS[what]
    lab = cluster(hosts=4, rails=3)
    lab.start_daemons(mode="steer", hold={"hold_down_s": 0.5, "probation_s": 1.0})
    recovered(lab)
    node = lab.nodes[0]
    since = time.monotonic_ns()
    with contextlib.ExitStack() as stack:
        for fault in faults:
            stack.enter_context(lab.inject(fault))
        wait_until(lambda: expected in blamed(node, since), READY_S, "the blame")
        assert blamed(node, since)[expected] >= 0.8
        assert set(blamed(node, since)) == {expected}
        # The same by hand, here and over the documents of all hosts.
        sockets = [str(n.run_dir / "ctl.sock") for n in lab.nodes]
        for found in (located(node), located(node, *sockets)):
            assert [(x["part"], x["element"]) for x in found] == [expected]
            assert found[0]["confidence"] >= 0.8


@pytest.mark.nightly
def test_a_neighbour_that_is_gone_stops_no_probes_to_the_others(cluster):
    """What waits for its address (ARP) filled the socket: the living seemed to be dead too."""
    lab = started(cluster)
    since = time.monotonic_ns()
    with lab.inject(BlackHole("h0:rail0")):
        time.sleep(12)  # 5 s until the kernel doubts the address, 3 s until it is gone
        for node in lab.nodes[1:]:
            moves = [r for r in rows(node, kind="link_state") if r["mono_ns"] >= since]
            assert [r for r in moves if r["to"] == "down"] == []
            assert all(link["probes"]["sent"] for link in ask(node, "links"))


def test_dead_spines_are_blamed_and_no_link(cluster):
    lab = started(cluster)
    since = time.monotonic_ns()
    with lab.inject(SpineDown("spine0")), lab.inject(SpineDown("spine1")):
        watchers = [n for n in lab.nodes if crossing(n)]
        assert watchers
        for node in watchers:
            wait_until(lambda n=node: blamed(n, since), READY_S, f"{node.name} says where")
            assert {part for part, _ in blamed(node, since)} == {"spine"}
            # Paths to two peers that miss are a doubt, and no more.
            assert set(states(node).values()) <= {"up", "suspect"}
