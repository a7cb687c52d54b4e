"""A job over the plugin, real processes and packets, and every fault of the first round.

Times here are generous deadlines; the figures are `./run bench failover`'s.
"""

import os
import random
import signal
import socket
import time
from contextlib import contextmanager

import pytest

from fabricd.steer.page import PageError, decode
from lab.cluster import wait_until
from lab.faults.catalog import AdminDown, BlackHole, Carrier
from lab.faults.flap import Flap
from lab.network import netns
from lab.observe import stats_pages
from telemetry.statspage import StatsEventKind

HOLD = {"hold_down_s": 0.5}
PATIENCE_S = 60.0
"""What may be slow on a loaded machine; far below FABRIC_DEADLINE."""
STEER_PAGE_SIZE = 65536


def pages(node):
    """Stats pages of the living processes of a host."""
    _, found = stats_pages.read(node.run_dir)
    return [process.page for process in found if process.alive]


def rails_of(node):
    return {rail.netdev: rail for page in pages(node) for rail in page.rails}


def events_of(node, kind):
    directory, found = stats_pages.read(node.run_dir)
    out = []
    for process in found:
        out += [e for e in directory.new_events(process).events if e.kind is kind]
    return out


@contextmanager
def job(lab, collective="ring", size=8 << 20, env=None, channels=None):
    """A job that runs until the block ends, and then must have been clean."""
    channels = str(channels or lab.topology.rails)
    perf = lab.start_perf(
        collective,
        *("--duration", "600", "--channels", channels, "--size", str(size), "--wait", "block"),
        env=env,
    )
    perf.wait_started(PATIENCE_S)
    yield perf
    assert perf.running, [perf.log(rank).read_text()[-1500:] for rank in range(len(perf.ranks))]
    for rank in perf.ranks:
        rank.send_signal(signal.SIGTERM)
    for result in perf.wait(PATIENCE_S):
        log = perf.log(result.rank).read_text()[-1500:]
        assert result.status == 0, log
        assert result.end["errors"] == 0, log
        assert result.end["corrupt_bytes"] == 0, log
        assert result.errors == []


def bytes_done(perf):
    rows = [row for row in perf.rows(0) if row["type"] == "sample"]
    return sum(sum(r["tx"] for r in row["rails"].values()) for row in rows)


def assert_progress(perf, timeout_s=PATIENCE_S):
    """Some more payload leaves rank 0."""
    before = bytes_done(perf)
    wait_until(lambda: bytes_done(perf) > before + 2_000_000, timeout_s, "progress of the job")


def assert_given_up(lab, since_ns):
    """Some process gives a path up."""

    def done():
        return any(
            event.time_ns >= since_ns
            for node in lab.nodes
            for event in events_of(node, StatsEventKind.PATH_DOWN)
        )

    wait_until(done, PATIENCE_S, "the path given up")


def returned(lab, since_ns):
    """Some path that was given up carries again."""
    return any(
        event.time_ns >= since_ns
        for node in lab.nodes
        for event in events_of(node, StatsEventKind.PATH_UP)
    )


def wait_steered(lab):
    """Daemons are there, and the pages they write are valid."""

    def fresh(node):
        try:
            return bool(decode((node.run_dir / "steer").read_bytes()).rails)
        except (OSError, PageError):
            return False

    wait_until(lambda: all(fresh(node) for node in lab.nodes), PATIENCE_S, "steer pages")


@pytest.mark.parametrize("daemons", [True, False], ids=["daemon", "no-daemon"])
@pytest.mark.parametrize(
    "fault",
    [
        lambda: Carrier("h0:rail1"),
        lambda: AdminDown("h1:rail0"),
        lambda: BlackHole("h0:rail0", "tx"),
        lambda: BlackHole("h1:rail1", "rx"),
        lambda: BlackHole("h0:rail1", "both"),
    ],
    ids=["carrier", "admin", "blackhole-tx", "blackhole-rx", "blackhole-both"],
)
def test_one_rail_dies_and_comes_back(cluster, fault, daemons):
    lab = cluster(hosts=2, rails=3, rate="200mbit")
    if daemons:
        lab.start_daemons(hold=HOLD)
        wait_steered(lab)
    with job(lab) as perf:
        made = fault()
        since = time.monotonic_ns()
        with lab.inject(made):
            assert_given_up(lab, since)
            assert_progress(perf)
        healthy = time.monotonic_ns()

        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        assert_progress(perf)


def test_only_cross_rail_paths_are_left(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with (
        job(lab) as perf,
        lab.inject(Carrier("h0:rail0")),
        lab.inject(Carrier("h1:rail1")),
    ):
        time.sleep(1)
        assert_progress(perf)
        sent = rails_of(lab.nodes[0])["rail1"].tx_bytes
        received = rails_of(lab.nodes[1])["rail0"].rx_bytes
        assert_progress(perf)
        assert rails_of(lab.nodes[0])["rail1"].tx_bytes > sent
        assert rails_of(lab.nodes[1])["rail0"].rx_bytes > received


def test_a_rail_of_ipv6_dies_and_comes_back(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with job(lab, env={"NCCL_SOCKET_FAMILY": "AF_INET6"}) as perf:
        used = lab.nodes[1].run(["ss", "-Htn", "state", "established"]).stdout
        assert "[fd00:1::1]" in used
        assert "10.1.0.1" not in used
        since = time.monotonic_ns()
        with lab.inject(Carrier("h0:rail1")):
            assert_given_up(lab, since)
            assert_progress(perf)
        healthy = time.monotonic_ns()
        wait_until(lambda: returned(lab, healthy), PATIENCE_S, "the rail's return")
        assert_progress(perf)


def test_all_rails_dark_for_three_seconds(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    lab.start_daemons(hold=HOLD)
    with job(lab) as perf:
        with lab.inject(Carrier("h0:rail0")), lab.inject(Carrier("h0:rail1")):
            time.sleep(3)
            assert perf.running
        assert_progress(perf)


@pytest.mark.parametrize("collective", ["p2p", "alltoall"])
def test_flapping_nic(cluster, collective):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    lab.start_daemons(hold=HOLD)
    with job(lab, collective) as perf:
        with lab.inject(Flap("h1:rail0", 100, 20)) as flap:
            flap.wait()
        assert_progress(perf)


def test_small_messages_survive(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with job(lab, "alltoall", size=4096) as perf, lab.inject(BlackHole("h0:rail0")):
        assert_progress(perf)


def test_daemons_and_probers_killed_in_traffic(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    lab.start_daemons(hold=HOLD)
    wait_steered(lab)
    with job(lab) as perf:
        for kill in ("kill_daemon", "kill_prober"):
            for node in lab.nodes:
                getattr(node, kill)(signal.SIGKILL)
            assert_progress(perf)
        assert not any(events_of(node, StatsEventKind.PATH_DOWN) for node in lab.nodes)


def test_a_stopped_peer_is_not_a_dead_one(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with job(lab) as perf:
        perf.ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(3)
        perf.ranks[1].send_signal(signal.SIGCONT)
        assert_progress(perf)
        assert not events_of(lab.nodes[0], StatsEventKind.ERROR)


def test_a_killed_peer_process_is_an_error_soon(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    perf = lab.start_perf(
        "ring", "--duration", "600", "--channels", "2", "--size", "1048576", "--wait", "block"
    )
    perf.wait_started(PATIENCE_S)
    perf.ranks[1].kill()
    killed = time.monotonic_ns()
    wait_until(lambda: perf.ranks[0].poll() is not None, PATIENCE_S, "the surviving rank's end")
    assert perf.ranks[0].returncode == 1
    error = next(row for row in perf.rows(0) if row["type"] == "error")
    # 1 s is the promise. Far below FABRIC_DEADLINE: it was not the time-out that ended it.
    assert error["t_ns"] - killed < 5e9


def test_without_failover_the_job_dies(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    perf = lab.start_perf(
        *("ring", "--duration", "600", "--channels", "2", "--size", "1048576", "--wait", "block"),
        env={"FABRIC_FAILOVER": "0"},
    )
    perf.wait_started(PATIENCE_S)
    with lab.inject(Carrier("h0:rail0")):
        results = perf.wait(PATIENCE_S)
    assert {result.status for result in results} == {1}
    assert any(result.errors for result in results)


# Garbage


def listeners(node):
    """(address, port) of every listening socket of the host."""
    done = node.run(["ss", "-Hltn", "-4"])
    pairs = [line.split()[3].rsplit(":", 1) for line in done.stdout.splitlines()]
    return sorted((address.split("%")[0], int(port)) for address, port in pairs)


def throw_garbage(node, address, port, seed):
    rng = random.Random(seed)

    def throw():
        for size in (0, 1, 16, 64, 300, 5000):
            with socket.create_connection((address, port), timeout=5) as stranger:
                if size:
                    stranger.sendall(rng.randbytes(size))

    netns.run_in(node.ns, throw)


def test_garbage_on_the_plugins_port(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    with job(lab) as perf:
        targets = [pair for pair in listeners(lab.nodes[1]) if pair[0].startswith("10.")]
        assert len(targets) >= 2  # one for each rail
        before = sum(page.refused_peers for page in pages(lab.nodes[1]))
        half_open = []
        for number, (address, port) in enumerate(targets):
            throw_garbage(lab.nodes[0], address, port, number)
            half_open.append(
                netns.run_in(
                    lab.nodes[0].ns,
                    lambda pair=(address, port): socket.create_connection(pair, timeout=5),
                )
            )
        assert_progress(perf)
        wait_until(
            lambda: sum(page.refused_peers for page in pages(lab.nodes[1])) >= before + 5,
            PATIENCE_S,
            "refused peers counted",
        )
        for connection in half_open:
            connection.close()
        assert not any(events_of(node, StatsEventKind.PATH_DOWN) for node in lab.nodes)


@pytest.mark.parametrize("damage", ["noise", "flipped", "truncated", "directory"])
def test_garbage_on_the_steer_page(cluster, damage):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    lab.start_daemons(hold=HOLD, restart=False)
    wait_steered(lab)  # a page without rails has nothing to damage
    node = lab.nodes[0]
    with job(lab) as perf:
        wait_until(
            lambda: all(p.steer_present for p in pages(node)), PATIENCE_S, "the steer page followed"
        )
        node.kill_daemon(signal.SIGKILL)
        page = node.run_dir / "steer"
        rng = random.Random(7)
        # A page that is corrupt, yet fresh: what a daemon gone mad would leave.
        body = bytearray(page.read_bytes())
        page.unlink()
        if damage == "noise":
            page.write_bytes(rng.randbytes(STEER_PAGE_SIZE))
        elif damage == "flipped":
            body[130:146] = b"\xff" * 16
            body[148:150] = b"\x00\x00"
            page.write_bytes(body)
        elif damage == "truncated":
            page.write_bytes(body[:100])
        else:
            page.mkdir()
        wait_until(
            lambda: all(not p.steer_present for p in pages(node)),
            PATIENCE_S,
            "the steer page given up",
        )
        if damage != "directory":
            wait_until(
                lambda: sum(p.steer_rejected for p in pages(node)) > 0,
                PATIENCE_S,
                "the page refused",
            )
        assert_progress(perf)
        assert not events_of(node, StatsEventKind.PATH_DOWN)
        if damage == "directory":
            page.rmdir()


def test_stats_directory_unwritable(cluster):
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    missing = lab.dir.root / "nowhere"
    perf = lab.start_perf(
        *("ring", "--iters", "20", "--channels", "2", "--size", "1048576", "--wait", "block"),
        env={"FABRIC_RUN_DIR": os.fspath(missing)},
    )
    for result in perf.wait(60):
        assert result.status == 0, perf.log(result.rank).read_text()[-1500:]
