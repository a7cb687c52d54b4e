"""fabricd on real processes and packets: carrier, black holes, modes, reload, garbage."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from fabricd.cli import client
from fabricd.steer.page import PageError, decode
from lab.cluster import Cluster, wait_until
from lab.faults.catalog import AdminDown, BlackHole, Carrier, LeafDown, NodeKill
from lab.network import netns

READY_S = 30.0
SLOW_S = 20.0


def ask(node, op, **request):
    return client.request(node.run_dir / "ctl.sock", {"op": op, **request})


def page(node):
    for _ in range(100):
        try:
            return decode((node.run_dir / "steer").read_bytes())
        except PageError:
            time.sleep(0.001)
    raise AssertionError("the steer page is never whole")


def weights(node):
    return {rail.netdev: rail.weight for rail in page(node).rails}


def states(node):
    return {link["netdev"]: link["state"] for link in ask(node, "links")}


def ready(node):
    try:
        links = ask(node, "links")
    except client.DaemonError:
        return False
    paths = [path for link in links for path in link["paths"]]
    return bool(paths) and all(x["state"] == "up" for x in [*links, *paths])


def prober_in_use(node):
    try:
        return ask(node, "status")["prober"]["up"]
    except client.DaemonError:
        return False


def started(make, mode="steer", **overrides) -> Cluster:
    """4 hosts x 2 rails, everything up and heard."""
    lab = make(hosts=4, rails=2)
    tables = {"hold": {"hold_down_s": 0.5, "probation_s": 1.0}} | overrides
    lab.start_daemons(mode=mode, **tables)
    for node in lab.nodes:
        wait_until(lambda n=node: ready(n), READY_S, f"{node.name} hears everybody")
    return lab


def rows(node, **query):
    return ask(node, "timeline", limit=100_000, **query)


def stored(node, want, what, **query):
    """Rows, once enough of them are in the file."""
    wait_until(lambda: want(rows(node, **query)), SLOW_S, what)
    return rows(node, **query)


def first_after(t_ns, found):
    return min((row["mono_ns"] for row in found if row["mono_ns"] >= t_ns), default=None)


def test_carrier_down_reaches_page_timeline_and_metrics(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    before = page(node).generation
    with lab.inject(Carrier("h0:rail1")):
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "rail1 is steered away")
        assert weights(node) == {"rail0": 1000, "rail1": 0}
        assert page(node).generation > before
        assert states(node)["rail1"] == "down"
        metrics = node.fetch("http://127.0.0.1:19200/metrics")
    wait_until(lambda: weights(node)["rail1"] == 1000, SLOW_S, "rail1 is back")
    flaps = stored(node, lambda r: len(r) >= 1, "the flap is stored", kind="flap")
    assert [(row["link"], row["count"]) for row in flaps] == [("rail1", 1)]
    start = next(row["t_ns"] for row in lab.truth() if row["phase"] == "start")
    told = first_after(start, rows(node, kind="steer"))
    assert told is not None
    assert told - start < 500e6, "a bound for a loaded machine; the benchmark has the figure"
    found = stored(
        node,
        lambda r: any(row["to"] == "probation" for row in r),
        "the way back is stored",
        kind="link_state",
        link="rail1",
    )
    moves = [(row["from"], row["to"]) for row in found]
    # Probes lag behind the carrier, each way; that is no reason to publish anything.
    assert moves[1:5] == [
        ("up", "down"), ("down", "hold"), ("hold", "probation"), ("probation", "up")
    ][: len(moves) - 1]  # fmt: skip
    assert 'fabricd_link_flaps_total{link="rail1",rail="1"}' in metrics
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    wait_until(
        lambda: (
            'fabricd_link_flaps_total{link="rail1",rail="1"} 1.0'
            in node.fetch("http://127.0.0.1:19200/metrics")
        ),
        SLOW_S,
        "the metric counts the flap",
    )


@pytest.mark.parametrize("direction", ["both", "rx", "tx"])
def test_black_hole_with_carrier_up_downs_that_link_alone(cluster, direction):
    lab = started(cluster)
    node, peer = lab.nodes[0], lab.nodes[1]
    with lab.inject(BlackHole("h0:rail0", direction)):
        wait_until(lambda: weights(node)["rail0"] == 0, SLOW_S, "the black hole is seen")
        assert weights(node)["rail1"] == 1000
        address = node.address(0)
        wait_until(
            lambda: any(p.remote == address and p.weight == 0 for p in page(peer).paths),
            SLOW_S,
            "the peer avoids that address",
        )
        assert weights(peer) == {"rail0": 1000, "rail1": 1000}, "the peer's own link is fine"
    wait_until(lambda: weights(node)["rail0"] == 1000, SLOW_S, "the link is back")
    wait_until(lambda: not page(peer).paths, SLOW_S, "the peer's exception is gone")
    assert rows(node, kind="flap") == []
    start = next(row["t_ns"] for row in lab.truth() if row["phase"] == "start")
    told = first_after(start, [r for r in rows(node, kind="steer") if r["link"] == "rail0"])
    assert told - start < 1000e6, "a bound for a loaded machine; the benchmark has the figure"


def test_black_hole_outlives_kill_9_of_prober_and_daemon(cluster):
    """A prober that has heard nobody yet, and a daemon without memory, must not bring it back."""
    lab = started(cluster)
    node = lab.nodes[0]
    with lab.inject(BlackHole("h0:rail0")):
        wait_until(lambda: states(node)["rail0"] == "down", SLOW_S, "down")
        node.prober.wait_restarted(node.kill_prober())
        node.daemon.wait_restarted(node.kill_daemon())
        wait_until(lambda: prober_in_use(node), READY_S, "prober is in use")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert weights(node)["rail0"] == 0
            time.sleep(0.05)
    wait_until(lambda: weights(node)["rail0"] == 1000, READY_S, "the link is back")


def test_stopped_prober_is_noticed_and_netlink_serves_meanwhile(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    node.kill_prober(signal.SIGSTOP)
    try:
        wait_until(lambda: not prober_in_use(node), SLOW_S, "its heartbeat is missed")
        with lab.inject(Carrier("h0:rail1")):
            wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steered by netlink alone")
        wait_until(lambda: weights(node)["rail1"] == 1000, SLOW_S, "and back")
    finally:
        node.kill_prober(signal.SIGCONT)
    wait_until(lambda: ready(node), READY_S, "the prober serves again")
    assert [row["count"] for row in rows(node, kind="flap")] == [1]
    told = [row["reason"] for row in rows(node, kind="prober")]
    assert "prober beats" in told[told.index("prober silent") :]


def test_leaf_and_host_failures_are_told_apart(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    with lab.inject(LeafDown("leaf1")):
        wait_until(
            lambda: all(weights(n)["rail1"] == 0 for n in lab.nodes), SLOW_S, "all leave rail 1"
        )
        assert all(weights(n)["rail0"] == 1000 for n in lab.nodes)
    for each in lab.nodes:
        wait_until(lambda n=each: ready(n), READY_S, "all back")
    with lab.inject(NodeKill("h3")):
        wait_until(lambda: ask(node, "status")["silent_hosts"] == ["h3"], SLOW_S, "h3 is silent")
        time.sleep(0.5)
        assert weights(node) == {"rail0": 1000, "rail1": 1000}


def test_admin_down_is_no_failure(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    with lab.inject(AdminDown("h0:rail1")):
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "drained")
        wait_until(lambda: states(node)["rail1"] == "admin", SLOW_S, "admin")
    wait_until(lambda: weights(node)["rail1"] == 1000, SLOW_S, "back")
    link = next(x for x in ask(node, "links") if x["netdev"] == "rail1")
    assert link["penalty"] == 0


def test_never_the_last_rail(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    with lab.inject(Carrier("h0:rail0")):
        wait_until(lambda: weights(node)["rail0"] == 0, SLOW_S, "rail0 away")
        with lab.inject(Carrier("h0:rail1")):
            wait_until(lambda: states(node)["rail1"] == "down", SLOW_S, "rail1 down too")
            assert any(weights(node).values())


def test_observe_logs_what_steer_would_do_and_promote_shows_it(cluster):
    lab = started(cluster, mode="observe")
    node = lab.nodes[0]
    with lab.inject(Carrier("h0:rail1")):
        found = stored(node, len, "WOULD_STEER is stored", kind="would_steer")
        assert [(r["link"], r["data"]["weight"]) for r in found] == [("rail1", 0)]
        assert weights(node) == {"rail0": 1000, "rail1": 1000}
        assert page(node).mode == 0
        done = ctl(node, "promote", "steer", "--yes")
        assert done.returncode == 0, done.stderr
        assert "1 of them took traffic" in done.stdout
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steers now")
        assert page(node).mode == 1
    refused = ctl(node, "promote", "migrate", "--yes")
    assert refused.returncode == 1
    assert "escalation" in refused.stderr
    assert (node.state_dir / "mode").read_text() == "steer\n"
    node.restart_daemon()
    wait_until(lambda: page(node).mode == 1, READY_S, "the mode outlives a restart")


def ctl(node, *args):
    return subprocess.run(
        [sys.executable, "-m", "fabricd.cli", *args, "--socket", str(node.run_dir / "ctl.sock")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_stop_file_returns_to_observe_within_two_seconds_and_back(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    with lab.inject(Carrier("h0:rail1")):
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steered")
        began = time.monotonic()
        node.stop_file.touch()
        wait_until(lambda: page(node).mode == 0, SLOW_S, "observes")
        assert time.monotonic() - began < 2.0
        assert weights(node) == {"rail0": 1000, "rail1": 1000}
        assert ask(node, "status")["stop_file"] is True
        node.stop_file.unlink()
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steers again")


def test_reload_with_a_bad_file_keeps_the_old_one_and_a_good_file_is_taken(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    good = node.config_path.read_text()
    pid = node.daemon.pid
    node.config_path.write_text(good + "\n[prob]\nx = 1\n")
    node.daemon.kill(1)
    refused = stored(
        node,
        lambda r: any(x.get("reason") == "reload refused" for x in r),
        "the refusal is on the timeline",
        kind="daemon",
    )
    text = next(x for x in refused if x["reason"] == "reload refused")["data"]["problem"]
    line = len(good.splitlines()) + 2
    assert f"fabricd.toml:{line}: prob: unknown key" in text
    assert ready(node)
    node.config_path.write_text(good.replace("hold_down_s = 0.5", "hold_down_s = 1.5"))
    node.daemon.kill(1)
    wait_until(
        lambda: ask(node, "config")["config"]["hold"]["hold_down_s"] == 1.5, SLOW_S, "reloaded"
    )
    assert node.daemon.pid == pid
    assert ready(node), "links and paths kept their state"


def test_garbage_on_probe_port_and_control_socket_changes_nothing(cluster):
    lab = started(cluster)
    node, peer = lab.nodes[0], lab.nodes[1]
    before = page(node)

    def spray():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.bind((peer.address(0), 0))
            for size in [0, 1, 31, 64, 100, 128, 200, 1400] * 10:
                s.sendto(bytes(i * 37 & 255 for i in range(size)), (node.address(0), 9200))

    # As many at once as a socket buffer holds: the prober may not run for a while.
    for sent in range(80, 401, 80):
        netns.run_in(peer.ns, spray)
        wait_until(
            lambda: sum(ask(node, "status")["prober"]["refused"].values()) >= sent,  # noqa: B023
            SLOW_S,
            "every packet of garbage is counted",
        )
    for garbage in (b"\xff" * 300 + b"\n", b"{}\n", b"x" * 70_000 + b"\n", b'{"op":"zap"}\n'):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(node.run_dir / "ctl.sock"))
            s.sendall(garbage)
            s.settimeout(20)
            assert json.loads(s.makefile().readline())["ok"] is False
    assert ask(node, "status")["refused"]["control_socket"] == 4
    after = page(node)
    assert after.generation == before.generation
    assert after.rails == before.rails
    assert ready(node)


def _flap(lab, enough):
    """A carrier that goes now and then, until it is enough."""
    while not enough.wait(2.0):
        with lab.inject(Carrier("h0:rail1"), 0.2):
            time.sleep(0.4)


def test_commands_answer_in_json_and_say_when_nobody_is_there(cluster, tmp_path):
    lab = started(cluster)
    node = lab.nodes[0]
    assert json.loads(ctl(node, "status", "--json").stdout)["mode"] == "steer"
    assert len(json.loads(ctl(node, "links", "--json").stdout)) == 2
    assert "rail1" in ctl(node, "links", "--paths").stdout
    kinds = {row["kind"] for row in json.loads(ctl(node, "timeline", "--json").stdout)}
    assert {"daemon", "prober", "link_state"} <= kinds
    assert ctl(node, "timeline", "--kind", "nonsense").returncode == 2
    assert ctl(node, "timeline", "--since", "soon").returncode == 2
    follower = subprocess.Popen(
        [sys.executable, "-m", "fabricd.cli", "events", "--follow", "--json", "--count", "0",
         "--socket", str(node.run_dir / "ctl.sock")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        lines = map(json.loads, iter(follower.stdout.readline, ""))
        # It hears what happens once it has been started: that takes a while on a busy machine.
        flaps = threading.Event()
        flapper = threading.Thread(target=_flap, args=(lab, flaps))
        flapper.start()
        try:
            row = next(r for r in lines if r["kind"] == "flap")
        finally:
            flaps.set()
            flapper.join()
        assert (row["link"], row["host"], row["count"]) == ("rail1", "h0", 1)
    finally:
        follower.terminate()
        follower.wait(20)
        follower.stdout.close()
    node.daemon.stop()
    assert weights(node) == {"rail0": 1000, "rail1": 1000}, "given back at a graceful stop"
    gone = ctl(node, "status")
    assert gone.returncode == 1
    assert "is fabricd running?" in gone.stderr
