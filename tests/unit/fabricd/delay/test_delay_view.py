"""From the sample ring to a host's view: columns, links and directions, events."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_delay_path import SEC, Link

from fabricd.delay.view import DelayView, PathPlace
from fabricd.delay.watch import DelayWatch
from fabricd.probes import layout as lay
from fabricd.probes.records import Direction
from fabricd.probes.ring import RingError, RingReader
from fabricd.probes.stamps import BLOCK, Exchange, StampReader
from lab.inputs.ring_file import fresh_ring, put, sample_at
from telemetry.events import LinkState

RX, TX = Direction.RX, Direction.TX
US = 1000


# -- columns --------------------------------------------------------------------------------------


def write(path: Path, numbers, *, config=1, flags=3, paths=2, head=None):
    data = bytearray(path.read_bytes())
    for n in numbers:
        sample_at(
            data, n, path=n % paths, flags=flags, config=config, t1=n, t2=n + 1, t3=-n, t4=n + 3
        )
    put(data, lay.RING_HEADER, 0, sample_head=numbers[-1] + 1 if head is None else head)
    with path.open("r+b") as file:
        file.write(data)


@pytest.fixture
def ring(tmp_path):
    path = tmp_path / "ring"
    path.write_bytes(fresh_ring())
    return path


def test_only_what_comes_later_is_read_and_once(ring):
    write(ring, range(5))
    with RingReader(ring) as reader:
        stamps = StampReader(reader)
        assert stamps.read(1, 99) == {}
        write(ring, range(5, 9))
        found = stamps.read(1, 99)
        assert found == {
            1: [Exchange(n, n + 1, -n, n + 3, 0) for n in (5, 7)],
            0: [Exchange(n, n + 1, -n, n + 3, 0) for n in (6, 8)],
        }
        assert stamps.read(1, 99) == {}


def test_halves_kinds_configurations_and_shares(ring):
    with RingReader(ring) as reader:
        stamps = StampReader(reader)
        write(ring, range(4), flags=lay.SAMPLE_HAS_OUT | lay.SAMPLE_HW_PEER)
        assert stamps.read(1, 1) == {0: [Exchange(0, 1, 0, 0, 2)], 1: [Exchange(1, 2, 0, 0, 2)]}
        write(ring, range(4, 8), flags=lay.SAMPLE_HAS_BACK | lay.SAMPLE_HW_LOCAL)
        assert stamps.read(1, 1)[0] == [Exchange(0, 0, -4, 7, 1)]
        write(ring, range(8, 12), config=2)
        assert stamps.read(1, 9) == {}
        write(ring, range(12, 112))
        assert [e.sent for e in stamps.read(1, 5)[0]] == [12, 32, 52, 72, 92]


def test_records_that_are_overwritten_or_not_there_are_left_out(ring):
    with RingReader(ring) as reader:
        stamps = StampReader(reader)
        write(ring, range(10), head=12)
        assert sum(len(found) for found in stamps.read(1, 99).values()) == 10
        write(ring, range(12, 40), head=12 + lay.SAMPLE_SLOTS)
        assert stamps.read(1, 99) == {}


def test_a_block_over_the_end_of_the_ring(ring):
    start = lay.SAMPLE_SLOTS - 3
    write(ring, [start - 1])
    with RingReader(ring) as reader:
        stamps = StampReader(reader)
        write(ring, range(start, start + 6), paths=1)
        assert [e.sent for e in stamps.read(1, 99)[0]] == list(range(start, start + 6))
        ring.write_bytes(b"")
        with pytest.raises(RingError):
            stamps.read(1, 99)


def test_of_a_long_pause_the_newest_are_read(ring):
    with RingReader(ring) as reader:
        stamps = StampReader(reader)
        write(ring, range(BLOCK + 100), paths=1)
        found = stamps.read(1, BLOCK)[0]
        assert len(found) == BLOCK
        assert found[-1].sent == BLOCK + 99


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_in_the_ring_do_no_harm(ring, data):
    raw = bytearray(fresh_ring())
    with RingReader(ring) as reader:
        stamps = StampReader(reader)
        head = data.draw(st.integers(0, 2**64 - 1) | st.integers(0, 300))
        put(raw, lay.RING_HEADER, 0, sample_head=head)
        noise = random.Random(data.draw(st.integers(0, 9))).randbytes(64 * 200)
        raw[lay.SAMPLE_OFFSET : lay.SAMPLE_OFFSET + len(noise)] = noise
        with ring.open("r+b") as file:
            file.write(raw)
        view = DelayView()
        view.configure([PathPlace(0, "rail0", "h1", "a")])
        view.feed(stamps.read(1, 50), {})
        wild = st.integers(-(2**63), 2**63 - 1)
        some = data.draw(st.lists(st.builds(Exchange, wild, wild, wild, wild, st.integers(0, 3))))
        for _ in range(8):
            view.feed({0: some}, {})
        view.link_figures(0)


# -- figures for people --------------------------------------------------------------------------


def test_figures_are_of_all_packets_of_a_link_s_paths():
    """One path in four queues for 800 µs: half of the packets do not, the worst hundredth does."""
    fabric = Fabric()
    view = DelayView()
    view.configure(fabric.places)
    fabric.links[0].queue_out = lambda t: 800.0 if t > 1_030 * SEC else 0.0
    for _ in range(40):
        view.feed({i: link.second() for i, link in enumerate(fabric.links)}, {})
    link = view.link_figures(0)
    assert link.queue_p50_ns[TX] < 15 * US
    assert link.queue_p99_ns[TX] == pytest.approx(800 * US, rel=0.1)
    assert link.queue_p99_ns[RX] < 40 * US
    assert view.path_figures(0).queue_p50_ns[TX] == pytest.approx(800 * US, rel=0.1)
    assert view.link_figures(1).queue_p99_ns[TX] < 40 * US
    assert link.window_s == 10.0


# -- the host's view ------------------------------------------------------------------------------


class Fabric:
    """A host with two links, four peers on each; clocks drift as they like."""

    def __init__(self, seed=1, peers=4):
        dice = random.Random(seed)
        self.places = [
            PathPlace(link, f"rail{link}", f"h{peer}", f"10.{link}.0.{peer}")
            for link in (0, 1)
            for peer in range(1, peers + 1)
        ]
        self.links = [
            Link(seed * 100 + i, drift_ppm=dice.uniform(-30, 30), offset_s=dice.uniform(-5, 5),
                 rate=10)
            for i in range(len(self.places))
        ]  # fmt: skip
        self.now = 0
        self.view = DelayView()
        self.view.configure(self.places)

    def on(self, netdev, peer=None):
        return [
            link
            for place, link in zip(self.places, self.links, strict=True)
            if place.netdev == netdev and peer in (None, place.peer)
        ]

    def exchanges(self):
        return {i: link.second() for i, link in enumerate(self.links)}

    def run(self, seconds, **named):
        changes = []
        for _ in range(seconds):
            self.now += SEC
            lost = {i: link.lost for i, link in enumerate(self.links)}
            changes += self.view.feed(self.exchanges(), lost, **named)
        return changes


def test_incast_at_our_port_stands_on_all_paths_one_way():
    fabric = Fabric()
    fabric.run(30)
    assert fabric.view.standing(0, RX).high == 0
    for link in fabric.on("rail0"):
        link.queue_back = lambda _t: 600.0 * random.uniform(0.4, 1)
    fabric.run(4)
    standing = fabric.view.standing(0, RX)
    assert (standing.known, standing.high, standing.peers) == (4, 4, 4)
    assert fabric.view.standing(0, TX).high == fabric.view.standing(1, RX).high == 0
    figures = fabric.view.link_figures(0)
    assert figures.window_s == 10
    assert set(fabric.view.queued_ns()) == {0, 1, 2, 3}
    assert all(300 * US < queued < 700 * US for queued in fabric.view.queued_ns().values())
    fabric.run(8)
    rx, tx = fabric.view.link_figures(0).queue_p50_ns
    assert rx == pytest.approx(420 * US, rel=0.25)
    assert tx < 20 * US


def test_a_silent_path_says_nothing_any_more():
    fabric = Fabric()
    fabric.run(20)
    for _ in range(9):
        fabric.view.feed({}, {})
    assert fabric.view.standing(0, RX).known == 0
    assert fabric.view.queueing_ns(0) is None
    assert fabric.view.link_figures(0).base_rtt_ns is not None
    fabric.view.feed({}, {})
    assert fabric.view.link_figures(0).base_rtt_ns is None


def test_one_peers_port_stands_on_its_path_alone():
    fabric = Fabric()
    fabric.run(30)
    for link in fabric.on("rail1", "h3"):
        link.queue_out = lambda _t: 900.0 * random.uniform(0.4, 1)
    fabric.run(4)
    assert fabric.view.standing(1, TX).high_peers == ("h3",)


def test_a_host_that_stamps_late_begins_no_congestion():
    fabric = Fabric()
    fabric.run(30)
    for link in fabric.links:
        link.queue_back = lambda _t: 2000.0 * random.uniform(0.1, 1)
    fabric.run(5, stalled_ns=SEC // 10)
    assert fabric.view.standing(0, RX).high == 0
    assert fabric.view.stalled


def test_paths_that_stay_keep_what_is_known_of_them():
    fabric = Fabric()
    fabric.run(15)
    moved = [replace(place, link=1 - place.link) for place in reversed(fabric.places[:6])]
    fabric.view.configure(moved)
    assert fabric.view.path_figures(0).base_rtt_ns == pytest.approx(40 * US, abs=5 * US)
    assert fabric.view.path_figures(99).base_rtt_ns is None


class Watched:
    """A `DelayWatch` whose stamps come from a `Fabric`."""

    def __init__(self, off=()):
        self.fabric = Fabric()
        self.watch = DelayWatch()
        health = lambda: SimpleNamespace(state=LinkState.UP, reason="carrier")  # noqa: E731
        self.engine = SimpleNamespace(
            overrides=SimpleNamespace(off=frozenset(off)),
            links=[
                SimpleNamespace(index=i, netdev=f"rail{i}", rail=i, health=health()) for i in (0, 1)
            ],
            paths=[SimpleNamespace(netdev=p.netdev, spec=p) for p in self.fabric.places],
        )  # fmt: skip
        self.watch.configure(self.engine)
        self.watch._stamps = lambda _feed: self.fabric.exchanges()
        self.feed = SimpleNamespace(header=lambda: None)
        self.now = 5 * SEC

    def run(self, seconds):
        events = []
        for _ in range(seconds):
            self.now += SEC
            events += self.watch.tick(self.feed, (), self.engine, self.now)
        return events


def test_congestion_comes_and_goes_as_two_rows():
    watched = Watched()
    assert watched.run(30) == []
    for link in watched.fabric.on("rail1"):
        link.queue_out = lambda _t: 700.0 * random.uniform(0.4, 1)
    (row,) = watched.run(10)
    assert (row.kind, row.link, row.rail) == ("condition", "rail1", 1)
    assert row.data["condition"] == "congested"
    assert row.data["direction"] == "tx"
    assert "queues tx" in row.reason
    assert "on 4 of 4 paths" in row.reason
    assert watched.watch.queued_ns()
    for link in watched.fabric.links:
        link.queue_out = lambda _t: 0.0
    (row,) = watched.run(20)
    assert row.reason == "fine: no longer congested"


def test_another_route_is_told_with_its_peer():
    watched = Watched()
    watched.run(30)
    (link,) = watched.fabric.on("rail0", "h2")
    link.out += 80
    (row,) = watched.run(25)
    assert (row.link, row.peer, row.data["condition"]) == ("rail0", "h2", "route")
    assert row.data["tx_us"] == pytest.approx(80, abs=8)
    assert row.data["rx_us"] == pytest.approx(0, abs=8)


def test_switched_off_it_says_nothing():
    watched = Watched(off=["delay"])
    watched.run(30)
    for link in watched.fabric.on("rail1"):
        link.queue_out = lambda _t: 700.0
    assert watched.run(10) == []
    assert watched.watch.queued_ns() == {}
    assert watched.watch.condition("rail1").now == "unknown"


def test_switched_off_while_congested_it_forgets_that():
    watched = Watched()
    watched.run(30)
    for link in watched.fabric.on("rail1"):
        link.queue_out = lambda _t: 700.0 * random.uniform(0.4, 1)
    watched.run(5)
    assert watched.watch.condition("rail1").now == "congested"
    watched.engine.overrides = SimpleNamespace(off=frozenset(["delay"]))
    watched.run(1)
    assert watched.watch.condition("rail1").now == "unknown"
    assert watched.watch.slow("rail1") is None
