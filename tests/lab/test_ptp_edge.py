"""A real ptp4l as grandmaster: TAI on every host of a lab, within its bound; fabric time unmoved.

ptp4l runs free and stamps in software, so what it gives is the machine's CLOCK_REALTIME, which
every host of the lab can be held against. Hosts' own clocks are virtual: they differ by up to a
second and 30 ppm.
"""

from __future__ import annotations

import json
import sys
import time
from ipaddress import ip_address

import pytest

from clocksync.page.clock_page import ClockError, ClockReader, State
from clocksync.page.tai_page import TaiReader
from fabricd.probes.client import host_id
from lab.clocks.chronyd import Refclock
from lab.clocks.grandmaster import UTC_OFFSET_S, Grandmaster
from lab.clocks.virtual_clock import VirtualClock
from lab.cluster import wait_until

SEED = 23
HOSTS = 3
MASTER, EDGE, OTHER = range(HOSTS)
RUN_S = 60.0
START_S = 90.0
SECOND = 10**9


def wall_and_raw():
    """Both clocks at one moment, as the quickest of some readings has it."""
    found = []
    for _ in range(30):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        wall = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        found.append((after - before, wall, (before + after) // 2))
    width, wall, raw = min(found)
    return wall, raw, width / 2


class Observer:
    """Holds the pages of all hosts against the machine's clock."""

    def __init__(self, cluster, origin):
        self.nodes, self.origin = cluster.nodes, origin
        self.clocks = [VirtualClock(SEED, host_id(n.name), origin) for n in self.nodes]
        self.ahead_ns = 0
        self.errors = {n: [] for n in range(HOSTS)}
        self.bounds = {n: [] for n in range(HOSTS)}
        self.missed = []

    def line(self, host):
        with TaiReader(self.nodes[host].run_dir) as reader:
            return reader.line()

    def state(self, host):
        try:
            said = self.line(host)
            return said.line.at(self.clocks[host].at(wall_and_raw()[1])).state
        except ClockError:
            return State.UNSYNCED

    def look(self):
        for host in range(HOSTS):
            try:
                said = self.line(host)
                wall, raw, reading = wall_and_raw()
                found = said.line.at(self.clocks[host].at(raw))
            except ClockError:
                continue
            error = found.ns - wall - self.ahead_ns
            self.errors[host].append(abs(error))
            self.bounds[host].append(found.bound_ns)
            if abs(error) > found.bound_ns + reading:
                self.missed.append((host, error, found.bound_ns, found.state.name))

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.1)

    def fabric(self, host):
        """The host's clock page: its line, at what its clock shows now."""
        with ClockReader(self.nodes[host].run_dir) as reader:
            line = reader._line
        _, raw, _ = wall_and_raw()
        return line, line.at(self.clocks[host].at(raw)), raw


class FabricWatch:
    """Whether fabric time moved between two looks: its rate is the machine's, near enough."""

    def __init__(self, observer):
        self.observer = observer
        self.begin = [observer.fabric(host) for host in range(HOSTS)]

    def moved_ns(self):
        """How far each host's fabric time is from where it would be, were it left alone."""
        moved = []
        for host, (line, before, raw) in enumerate(self.begin):
            now_line, after, now_raw = self.observer.fabric(host)
            assert now_line.epoch == line.epoch, "another epoch"
            shown = [self.observer.clocks[host].at(at) for at in (raw, now_raw)]
            passed = (shown[1] - shown[0]) * (1 + line.slope)
            # Rates walk by 1 ppb in a root of a second, and one line's is known to some 10 ppb.
            slack = after.bound_ns + before.bound_ns + 200e-9 * (shown[1] - shown[0])
            moved.append((abs(after.ns - before.ns - passed), slack))
        return moved


@pytest.fixture(scope="module")
def lab(module_cluster):
    cluster = module_cluster(hosts=HOSTS, rails=1)
    cluster.start_daemons(restart=False, probe={"synchronized": False})
    master = Grandmaster(cluster.nodes[MASTER])
    cluster.nodes[EDGE].write_config(
        {"clock": {"ptp_masters": [cluster.nodes[MASTER].address(0)], "ptp_interface": "rail0"}}
    )
    told = cluster.nodes[OTHER]
    told.write_config({"clock": {"chrony_socket": str(Refclock(told).socket)}})
    origin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    for node in cluster.nodes:
        node.start_clock(seed=SEED, origin_ns=origin, restart=False)
    observer = Observer(cluster, origin)
    master.start()
    yield cluster, master, observer
    master.kill()


@pytest.fixture
def tracked(lab):
    """All hosts know TAI, whichever test is the first to ask for that."""
    _, master, _ = lab
    master.settings()
    known(lab, START_S, "all hosts know TAI")
    return lab


def known(lab, timeout_s, what, condition=lambda _: True, state=State.LOCKED):
    """Wait until all hosts are in that state, and the condition holds for each.

    Raises:
        AssertionError: they do not come to be; with what everybody says of it.
    """
    cluster, master, observer = lab

    def so():
        return all(observer.state(host) is state and condition(host) for host in range(HOSTS))

    try:
        wait_until(so, timeout_s, what)
    except TimeoutError as error:
        logs = [node.dir / "fabric-clock.log" for node in cluster.nodes] + [master.log]
        lines = [observer.line(host) for host in range(HOSTS)]
        running = master.process is not None and master.process.poll() is None
        raise AssertionError(
            f"{error}: {lines}\nmaster runs: {running}; {document(cluster)}\n"
            + "".join(f"--- {log}\n{log.read_text()}" for log in logs)
        ) from None


def document(cluster):
    try:
        text = (cluster.nodes[EDGE].run_dir / "clock.json").read_text()
    except FileNotFoundError:
        return {"tracking": False}  # it has not begun
    return json.loads(text)["ptp"]


@pytest.mark.nightly
def test_a_master_whose_time_is_no_tai_gives_none(lab):
    cluster, _, observer = lab
    wait_until(lambda: document(cluster)["tracking"], START_S, "it is tracked")
    (row,) = document(cluster)["masters"]
    assert row["grants"] == dict.fromkeys(("announce", "sync", "delay_resp"), "granted")
    assert (row["best"], row["ptp_timescale"], row["utc_offset_s"]) == (True, False, None)
    assert all(observer.state(host) is State.UNSYNCED for host in range(HOSTS))


@pytest.mark.nightly
def test_a_minute_of_tai_on_every_host_within_its_bound(tracked):
    cluster, _, observer = tracked
    observer.watch(RUN_S)
    for host in range(HOSTS):
        assert len(observer.errors[host]) > RUN_S, "it was there all the while"
        said = observer.line(host)
        assert said.source.traceable
        assert (said.source.clock_class, said.source.steps_removed) == (6, 0)
        assert said.source.utc_offset_s == UTC_OFFSET_S
        assert said.line.reference == host_id(cluster.nodes[EDGE].name)
        # Half of the round trip of software stamps over a bridge is some microseconds.
        assert sorted(observer.bounds[host])[len(observer.bounds[host]) // 2] < 1e6
    assert not observer.missed
    (row,) = document(cluster)["masters"]
    assert (row["lost"], row["denied"], row["steps"]) == (0, 0, 0)


def test_fabricctl_and_readers_say_it(tracked):
    cluster, _, _ = tracked
    words = [sys.executable, "-m", "fabricd.cli", "clock"]
    text = cluster.nodes[EDGE].run(words).stdout
    for name in ("TAI", "UTC offset", "Grandmaster", "Steps removed", "TAI root delay"):
        assert f"\n{name}" in text
    assert cluster.nodes[MASTER].address(0) in text
    other = json.loads(cluster.nodes[OTHER].run([*words, "--json"]).stdout)
    assert other["tai"]["utc_offset_s"] == UTC_OFFSET_S
    assert other["ptp"] is None


@pytest.mark.nightly
def test_chronyd_has_utc_by_fabric_time_where_it_is_asked_for(tracked):
    """A real one, which only measures (-x): UTC is the machine's clock less the leap seconds."""
    cluster, _, _ = tracked
    node = cluster.nodes[OTHER]
    with Refclock(node) as chronyd:
        wait_until(lambda: chronyd.samples() > 8, START_S, "chronyd has taken samples")
        offset_ns, spread_ns = chronyd.offset_ns()
        told = json.loads((node.run_dir / "clock.json").read_text())["chrony"]
        text = node.run([sys.executable, "-m", "fabricd.cli", "clock"]).stdout
    assert abs(offset_ns - UTC_OFFSET_S * SECOND) < 50_000, "microseconds, and a busy machine"
    assert spread_ns < 50_000
    assert told["why"] == ""
    assert told["told"] > 8
    assert f"Chronyd is told : by {chronyd.socket}" in text


def test_a_master_that_is_killed_and_returns_moves_no_fabric_time(tracked):
    cluster, master, observer = tracked
    before = FabricWatch(observer)
    epochs = [observer.line(host).line.epoch for host in range(HOSTS)]
    master.kill()
    known(tracked, 30, "it is held over", state=State.HOLDOVER)
    observer.watch(5)
    assert document(cluster)["masters"][0]["alive"] is False
    master.start()
    master.settings()
    known(tracked, START_S, "and tracked again")
    observer.watch(5)
    assert not observer.missed
    assert [observer.line(host).line.epoch for host in range(HOSTS)] == epochs, "the same TAI"
    assert all(moved <= slack for moved, slack in before.moved_ns())


@pytest.mark.nightly
def test_a_master_whose_time_steps_is_followed_by_tai_and_not_by_fabric_time(tracked):
    _, master, observer = tracked
    before = FabricWatch(observer)
    epochs = [observer.line(host).line.epoch for host in range(HOSTS)]
    step_s = 0.25
    master.kill()
    master.start(ahead_s=step_s)
    master.settings()
    known(
        tracked, START_S, "TAI is what the master says",
        lambda host: observer.line(host).line.epoch != epochs[host],
    )  # fmt: skip
    observer.ahead_ns = round(step_s * SECOND)
    observer.missed.clear()
    observer.watch(10)
    assert not observer.missed
    assert all(moved <= slack for moved, slack in before.moved_ns())


@pytest.mark.nightly
def test_another_master_over_ipv6_after_a_restart_of_the_service(tracked):
    cluster, first, observer = tracked
    before = FabricWatch(observer)
    edge = cluster.nodes[EDGE]
    first.kill()
    edge.clock.stop()
    address = cluster.nodes[OTHER].address(0, 6)
    edge.write_config({"clock": {"ptp_masters": [address]}})
    master = Grandmaster(cluster.nodes[OTHER], transport="UDPv6")
    master.start()
    try:
        master.settings(clock_class=7)
        edge.start_clock(seed=SEED, origin_ns=observer.origin, restart=False)
        known(
            (cluster, master, observer), START_S, "TAI is the other master's",
            lambda host: observer.line(host).source.clock_class == 7,
        )  # fmt: skip
        observer.ahead_ns = 0
        observer.missed.clear()
        observer.watch(10)
        assert not observer.missed
        (row,) = document(cluster)["masters"]
        assert (row["address"], row["best"]) == (str(ip_address(address)), True)
        assert all(moved <= slack for moved, slack in before.moved_ns())
    finally:
        master.kill()
