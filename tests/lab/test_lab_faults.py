"""Every fault does what it says, measured with packets and the kernel's own counters."""

import contextlib
import itertools
import subprocess
import time
from pathlib import Path

import pytest

from lab.cluster import wait_until
from lab.faults.catalog import (
    AdminDown,
    BlackHole,
    Carrier,
    LeafDown,
    Loss,
    NodeFreeze,
    NodeKill,
    SpineDown,
)
from lab.faults.flap import Flap
from lab.faults.schedule import Step
from lab.observe.traffic import delivered
from lab.topology import TopologyError

N = 200
PATIENCE_S = 60


def rows_of(lab, fault):
    return [r for r in lab.truth() if r["id"] == fault.id]


def sysfs(node, rail, name):
    return node.run(["cat", f"/sys/class/net/rail{rail}/{name}"], check=False).stdout.strip()


@pytest.fixture
def pair(two):
    return two


def both_ways(lab, family=4, rail=0, count=N):
    a, b = lab.nodes[:2]
    return (
        delivered(a, b, count, rail=rail, family=family),
        delivered(b, a, count, rail=rail, family=family),
    )


def test_carrier(pair):
    node = pair.nodes[0]
    before = node.carrier_down_count(0)
    fault = Carrier("h0:rail0")
    with pair.inject(fault):
        assert not node.carrier(0)
        assert int(sysfs(node, 0, "flags"), 16) & 1, "the host's own end stays administratively up"
        assert node.carrier(1)
        assert both_ways(pair) == (0, 0)
        assert both_ways(pair, rail=1) == (N, N)
    assert node.carrier(0)
    assert node.carrier_down_count(0) == before + 1
    assert both_ways(pair) == (N, N)
    start, end = rows_of(pair, fault)
    assert (start["phase"], end["phase"]) == ("start", "end")
    assert start["target"] == "h0:rail0"
    assert start["t_ns"] == fault.started_ns
    assert end["t_ns"] > start["t_ns"] + start["took_ns"]


def test_admin_down_and_its_routes(pair):
    node = pair.nodes[0]
    before = node.run(["ip", "route", "show", "table", "all"]).stdout
    before6 = node.run(["ip", "-6", "route", "show", "table", "all"]).stdout
    with pair.inject(AdminDown("h0:rail0")):
        assert not int(sysfs(node, 0, "flags"), 16) & 1
        assert node.run(["ip", "route", "show", "table", "100"], check=False).stdout == ""
        assert both_ways(pair) == (0, 0)
    after = node.run(["ip", "route", "show", "table", "all"]).stdout
    after6 = node.run(["ip", "-6", "route", "show", "table", "all"]).stdout
    assert sorted(after.splitlines()) == sorted(before.splitlines())
    assert sorted(after6.splitlines()) == sorted(before6.splitlines())
    assert both_ways(pair) == (N, N)
    assert both_ways(pair, family=6) == (N, N)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(
    ("direction", "expected"), [("tx", (0, N)), ("rx", (N, 0)), ("both", (0, 0))]
)
def test_black_hole_directions(pair, direction, expected, family):
    node = pair.nodes[0]
    assert both_ways(pair, family) == (N, N)
    with pair.inject(BlackHole("h0:rail0", direction)):
        assert node.carrier(0)
        assert both_ways(pair, family) == expected
    assert both_ways(pair, family) == (N, N)


def test_black_hole_also_swallows_arp_and_what_the_spines_bring(pair):
    a, b = pair.nodes
    for node in (a, b):
        node.run(["ip", "neigh", "flush", "all"])
    with pair.inject(BlackHole("h0:rail0", "rx")):
        assert delivered(b, a, N, rail=1, to_rail=0) == 0
        node_view = a.run(
            ["ping", "-c1", "-W1", "-I", a.address(0), b.address(0)], check=False
        ).returncode
        assert node_view != 0
        assert "lladdr" not in a.run(["ip", "neigh", "show", "dev", "rail0"]).stdout
    assert delivered(b, a, N, rail=1, to_rail=0) == N


@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_random_loss_of_one_direction(pair, direction):
    count = 4000
    assert both_ways(pair) == (N, N), "and the addresses are resolved"
    with pair.inject(Loss("h0:rail0", 10.0, direction)):
        there, back = both_ways(pair, count=count)
    lossy, clean = (there, back) if direction == "tx" else (back, there)
    assert clean == count
    # 4000 draws at 10 %: standard deviation 19, so ±6 of them.
    assert count * 0.9 - 114 <= lossy <= count * 0.9 + 114


def test_loss_of_a_thousandth_is_not_nothing(pair):
    count = 20_000
    assert both_ways(pair) == (N, N), "and the addresses are resolved"
    with pair.inject(Loss("h0:rail0", 0.5, "tx")):
        got = delivered(pair.nodes[0], pair.nodes[1], count)
    # Standard deviation 10, so ±6 of them.
    assert 40 <= count - got <= 160


@pytest.mark.parametrize("period_ms", [2, 20])
def test_flaps_are_counted_exactly(pair, period_ms):
    node = pair.nodes[0]
    before = node.carrier_down_count(1)
    fault = Flap("h0:rail1", period_ms, 100)
    with pair.inject(fault):
        fault.wait()
    assert node.carrier_down_count(1) == before + 100
    rows = rows_of(pair, fault)
    downs = [r for r in rows if r["phase"] == "down"]
    ups = [r for r in rows if r["phase"] == "up"]
    assert [r["n"] for r in downs] == list(range(1, 101))
    assert [r["n"] for r in ups] == list(range(1, 101))
    assert all(d["t_ns"] < u["t_ns"] for d, u in zip(downs, ups, strict=True))
    # How late is the machine's doing, and the rows say it; the instants themselves do not drift,
    # but when one is late by more than half a phase, the others move by that.
    phase = period_ms * 500_000
    order = [row for both in zip(downs, ups, strict=True) for row in both]
    due = order[0]["t_ns"] - order[0]["late_ns"]
    for row in order:
        assert row["late_ns"] >= 0
        assert row["t_ns"] == due + row["late_ns"]
        due += phase + (row["late_ns"] if row["late_ns"] > phase // 2 else 0)
    # So no phase shrinks to nothing.
    assert min(b["t_ns"] - a["t_ns"] for a, b in itertools.pairwise(order)) >= phase // 2
    assert both_ways(pair, rail=1) == (N, N)


def test_a_link_carries_at_once_after_a_storm_of_flaps(pair):
    """The leaf's port must not wait for the kernel's link watch, which acts once a second."""

    def carries_after_s():
        fault = Flap("h0:rail0", 2, 50)
        with pair.inject(fault):
            fault.wait()
        up = rows_of(pair, fault)[-2]
        wait_until(
            lambda: delivered(pair.nodes[0], pair.nodes[1], 1) == 1, PATIENCE_S, "a datagram"
        )
        return (time.monotonic_ns() - up["t_ns"]) / 1e9

    # The link watch would leave each of these shut for 0.9 s; the machine is not late each time.
    assert min(carries_after_s() for _ in range(5)) < 0.6


def test_a_flap_cut_short_leaves_the_link_up(pair):
    node = pair.nodes[0]
    fault = Flap("h0:rail0", 100, 1000)
    with pair.inject(fault):
        wait_until(lambda: not node.carrier(0), PATIENCE_S, "carrier loss")
    wait_until(lambda: node.carrier(0), PATIENCE_S, "carrier")
    ends = [r for r in rows_of(pair, fault) if r["phase"] == "end"]
    assert len(ends) == 1


def test_leaf_failure(pair):
    a, b = pair.nodes
    with pair.inject(LeafDown("leaf0")):
        assert not a.carrier(0)
        assert not b.carrier(0)
        assert both_ways(pair, rail=1) == (N, N)
    assert both_ways(pair) == (N, N)
    assert delivered(a, b, N, rail=1, to_rail=0) == N
    assert delivered(a, b, N, rail=0, to_rail=1, family=6) == N


def test_one_spine_fails_and_the_other_carries(pair):
    a, b = pair.nodes
    for spine in ("spine0", "spine1"):
        with pair.inject(SpineDown(spine)):
            assert delivered(a, b, N, rail=1, to_rail=0, flows=32) == N
            assert delivered(a, b, N, rail=1, to_rail=0, flows=32, family=6) == N
    with pair.inject(SpineDown("spine0")), pair.inject(SpineDown("spine1")):
        assert delivered(a, b, N, rail=1, to_rail=0, flows=32) == 0
        assert both_ways(pair) == (N, N)
    assert delivered(a, b, N, rail=1, to_rail=0, flows=32) == N
    assert delivered(a, b, N, rail=1, to_rail=0, flows=32, family=6) == N


def test_node_freeze(pair):
    a = pair.nodes[0]
    process = a.popen(["bash", "-c", "sleep 1000 & while :; do read -t 0.02 <> <(:); done"])
    wait_until(lambda: len(a.pids()) >= 2, PATIENCE_S, "processes")

    def states():
        found = set()
        for pid in a.pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                text = Path(f"/proc/{pid}/stat").read_text()
                found.add(text.rpartition(")")[2].split()[0])
        return found

    with pair.inject(NodeFreeze("h0")):
        assert states() <= {"T", "D"}, "D: the shell in vfork, SIGSTOP pending"
        with pair.inject(NodeFreeze("h0")):
            pass
        assert states() <= {"T", "D"}, "an inner freeze that ends does not thaw the outer one"
        assert both_ways(pair) == (N, N), "the kernel of a frozen node still answers"
    wait_until(lambda: "T" not in states(), PATIENCE_S, "all run again")
    process.kill()
    process.wait()


def test_node_kill(pair):
    a = pair.nodes[0]
    victims = [a.popen(["sleep", "1000"]) for _ in range(3)]
    with pair.inject(NodeKill("h0")):
        assert [v.wait(PATIENCE_S) for v in victims] == [-9, -9, -9]
        assert a.dead
        assert not a.carrier(0)
        assert both_ways(pair) == (0, 0)
    assert not a.dead
    assert both_ways(pair) == (N, N)
    assert delivered(a, pair.nodes[1], N, rail=1, to_rail=0) == N


def test_no_fin_escapes_a_killed_node(pair):
    """Power loss: the peer's connection does not see an end of file."""
    a, b = pair.nodes
    command = ["python3", "-c", LISTENER, b.address(0)]
    with b.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as listener:
        assert listener.stdout.readline() == "listening\n"
        talker = a.popen(["python3", "-c", TALKER, b.address(0)])
        assert listener.stdout.readline() == "accepted\n"
        with pair.inject(NodeKill("h0")):
            assert listener.wait(PATIENCE_S) == 0
        assert listener.stdout.read() == "silence\n"
        talker.wait(PATIENCE_S)


LISTENER = """
import socket, sys
s = socket.create_server((sys.argv[1], 7000)); print("listening", flush=True)
c, _ = s.accept(); print("accepted", flush=True)
c.settimeout(1.0)
try:
    print("end" if c.recv(1) == b"" else "data", flush=True)
except ConnectionError:
    print("reset", flush=True)
except TimeoutError:
    print("silence", flush=True)
"""
TALKER = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7000)); time.sleep(100)
"""


def test_faults_on_one_port_do_not_end_each_other(pair):
    node = pair.nodes[0]
    one, other = pair.arm(BlackHole("h0:rail0", "tx")), pair.arm(BlackHole("h0:rail0", "tx"))
    first, second = pair.arm(Carrier("h0:rail0")), pair.arm(Carrier("h0:rail0"))
    for fault in (one, other, first, second):
        fault.start()
    first.end()
    assert not node.carrier(0)
    with pair.inject(LeafDown("leaf0")):
        pass
    assert not node.carrier(0), "the leaf came back, the pulled cable did not"
    second.end()
    assert node.carrier(0)
    one.end()
    assert delivered(*pair.nodes, N) == 0
    other.end()
    assert both_ways(pair) == (N, N)


def test_a_flap_does_not_lift_a_pulled_cable(pair):
    node = pair.nodes[0]
    with pair.inject(Carrier("h0:rail0")):
        before = node.carrier_down_count(0)
        fault = Flap("h0:rail0", 4, 20)
        with pair.inject(fault):
            fault.wait()
        assert not node.carrier(0)
        assert node.carrier_down_count(0) == before
    assert node.carrier(0)


def test_a_schedule_plays_on_time(pair):
    steps = [
        Step(0.2, Carrier("h0:rail0"), 0.4),
        Step(0.3, Carrier("h1:rail1"), 0.1),
        Step(0.5, Flap("h1:rail0", 10, 5), None),
    ]
    before = len(pair.truth())
    play = pair.play(steps)
    play.wait(PATIENCE_S)
    rows = pair.truth()[before:]
    for step in steps:
        mine = [r for r in rows if r["id"] == step.fault.id]
        begin = mine[0]["t_ns"] - play.started_ns
        assert begin >= step.at * 1e9
        assert mine[-1]["phase"] == "end"
        if step.seconds:
            assert mine[-1]["t_ns"] - play.started_ns >= (step.at + step.seconds) * 1e9
    # How late it may be is the machine's doing; a step that waited for another would be out of
    # order: the carrier of h0 comes back last, after the flap has begun.
    marks = [
        (r["target"], r["phase"]) for r in rows if r["fault"] != "flap" or r["phase"] == "start"
    ]
    assert marks == [
        ("h0:rail0", "start"), ("h1:rail1", "start"), ("h1:rail1", "end"),
        ("h1:rail0", "start"), ("h0:rail0", "end"),
    ]  # fmt: skip
    assert all(node.carrier(r) for node in pair.nodes for r in (0, 1))


@pytest.mark.parametrize(
    "fault",
    [
        lambda: Carrier("h0"),
        lambda: Carrier("leaf0"),
        lambda: Carrier("h7:rail0"),
        lambda: LeafDown("spine0"),
        lambda: SpineDown("h0:rail0"),
        lambda: NodeKill("h0:rail0"),
        lambda: Loss("h0:rail0", 0),
        lambda: Loss("h0:rail0", 101),
        lambda: Flap("h0:rail0", 0.1, 10),
        lambda: Flap("h0:rail0", 10, 0),
        lambda: Flap("h0:rail0", 10, 5, duty=1.0),
        lambda: BlackHole("h0:rail0", "sideways"),
    ],
)
def test_faults_that_make_no_sense_are_refused(pair, fault):
    before = pair.truth()
    with pytest.raises(TopologyError):
        pair.arm(fault())
    assert pair.truth() == before


def test_routes_come_back_after_a_down_by_hand(pair):
    """``ip link set`` typed by somebody else: the kernel alone would not restore the tables."""
    node = pair.nodes[0]
    for _ in range(2):
        node.run(["ip", "link", "set", "rail0", "down"])
        node.run(["ip", "link", "set", "rail0", "up"])

    def tables():
        four = node.run(["ip", "route", "show", "table", "100"], check=False).stdout
        six = node.run(["ip", "-6", "route", "show", "table", "100"], check=False).stdout
        return [line.split()[0] for line in (four + six).splitlines()]

    wanted = ["10.0.0.0/24", "default", "default", "fd00::/64"]
    wait_until(lambda: sorted(tables()) == wanted, PATIENCE_S, "routes")
    assert delivered(*pair.nodes, N, to_rail=1) == N
    assert delivered(*pair.nodes, N, to_rail=1, family=6) == N


async def test_from_a_running_event_loop(cluster):
    lab = cluster(hosts=1, rails=1)
    node = lab.nodes[0]
    with lab.inject(AdminDown("h0:rail0")):
        assert not node.carrier(0)
    assert node.carrier(0)
