"""The clock service around its core: files that come, go or are damaged, words from a ring."""

import json
import struct

import pytest
from structlog.testing import capture_logs

from clocksync.linear import Linear
from clocksync.page import ClockReader, State
from clocksync.pair import Pair, Rules
from clocksync.ports import Ends, PortPage
from clocksync.ptp.client import Grandmaster, MasterTime
from clocksync.standing import HostRules
from clocksync.tai import TaiReader
from clocksync.words import (
    KIND,
    MOST,
    SIZE,
    Gauge,
    Mesh,
    Origin,
    Reference,
    Time,
    Trace,
    decode,
    encode,
)
from fabricd.clock import service as module
from fabricd.clock.boot import Boot
from fabricd.clock.paths import PathTable
from fabricd.clock.service import FOUND_NS, ClockService
from fabricd.clock.telling import telling
from fabricd.probes import layout as lay
from lab.ringfile import fresh_ring, put, sample_at

NOW = 1_800_000_000 * 10**9
QUICK = HostRules(listen_ns=0)


class Stopped:
    """A clock that a test moves."""

    def __init__(self):
        self.ns = 10**12

    def now(self):
        return self.ns

    def own(self, stamps):
        return stamps

    def peers(self, _host, stamps):
        return stamps


@pytest.fixture
def clocks():
    return Stopped()


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "prober").mkdir()
    return tmp_path


@pytest.fixture
def make(run_dir, clocks):
    made = []

    def start(**given):
        made.append(
            ClockService(
                7, run_dir, **({"priority": 100, "clocks": clocks, "rules": QUICK} | given)
            )
        )
        return made[-1]

    yield start
    for each in made:
        each.close()


def told(run_dir):
    """What lies on the page of words."""
    data = (run_dir / "prober" / "words").read_bytes()
    at = KIND.place(struct.unpack_from("<Q", data, 8)[0]).start + 16
    words = [data[at + n * SIZE : at + n * SIZE + SIZE] for n in range(MOST)]
    return [decode(word) for word in words if word[0]]


def ring_with(run_dir, *words, path=0, host=8):
    data = fresh_ring(0, len(words), paths=2)
    for index in range(2):
        put(data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
            flags=lay.PATH_CLOCK, host_id=host + index, peer_incarnation=5)  # fmt: skip
    for number, word in enumerate(words):
        sample_at(data, number, path=path, config=1, word=struct.unpack("<4Q", word))
    return data


def test_a_host_alone_begins_a_mesh_and_gives_its_own_time(make, run_dir, clocks):
    service = make()
    service.tick()
    clocks.ns += 10**8
    service.tick()
    with ClockReader(run_dir) as reader:
        line = reader._line
    assert (line.state, line.reference) == (State.LOCKED, 7)
    assert line.raw_ns == clocks.ns
    kinds = {type(word) for word in told(run_dir)}
    assert kinds == {Mesh, Gauge, Reference, Time}
    service.store()
    document = json.loads((run_dir / "clock.json").read_text())
    assert (document["state"], document["is_reference"], document["paths"]) == ("locked", True, [])


def test_a_host_that_is_never_reference_has_no_time_of_its_own(make, run_dir, clocks):
    service = make(priority=255)
    for _ in range(5):
        clocks.ns += 10**8
        service.tick()
    assert service.core.status.state is State.UNSYNCED
    service.store()
    assert json.loads((run_dir / "clock.json").read_text())["bound_ns"] is None


def test_words_in_the_ring_are_heard_and_damaged_ones_counted(make, run_dir, clocks):
    gauge = Gauge(8, NOW)
    said = [encode(gauge), encode(Mesh(gauge.tag, 10**9, NOW, 0.0, 0.0, 8)), b"\x77" + bytes(31)]
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir))
    service = make(rules=HostRules())
    service.tick()
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir, *said))
    service.tick()
    edge = service.core.edges[0]
    assert (edge.peer, edge.gauge) == (8, gauge)
    assert edge.mesh.mesh_ns == NOW
    assert service.refused == 1
    assert service.core.gauge == gauge, "the neighbour's mesh is the one to be in"


def test_what_the_prober_takes_to_read_the_clocks_is_in_the_bound(make, run_dir, clocks):
    ring, data = run_dir / "prober" / "ring", ring_with(run_dir)
    put(data, lay.RING_HEADER, 0, clock_read_ns=5_000)
    ring.write_bytes(data)
    service = make()

    def step():
        clocks.ns += 10**8
        service.tick()
        with ClockReader(run_dir) as reader:
            return reader._line.bound_ns

    step()
    assert step() == pytest.approx(2_500, abs=10), "the reference's own time is right"
    ring.unlink()
    assert step() == pytest.approx(2_500, abs=10), "what it stamped is still used"
    for path in service.table.all():
        path.hardware = (True, True)
    assert step() == pytest.approx(0, abs=10), "NICs' stamps pass no clock of the kernel"


def test_what_a_way_takes_at_least_is_told_to_each_path_and_said_once_where_it_is_wrong(
    make, run_dir, clocks
):
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir))
    service = make(paths=Rules(least_way_ns=700))
    service.tick()
    paths = service.table.all()
    assert [path.estimator.rules.least_way_ns for path in paths] == [700, 700]
    paths[1].estimator.shorter = True
    distrusted = []
    service.core.distrust = lambda: distrusted.append(clocks.ns)
    with capture_logs() as logs:
        for path in paths:
            path.estimator.estimate = lambda now: None
        for _ in range(8):
            clocks.ns += 10**8
            service.tick()
    said = [each for each in logs if "least_way_ns" in each["event"]]
    assert [each["peer"] for each in said] == [paths[1].key.address]
    assert len(distrusted) == 1, "bounds rested on it"
    service.store()
    shown = json.loads((run_dir / "clock.json").read_text())["paths"]
    assert [path["shorter_than_least"] for path in shown] == [False, True]


class Edge:
    """A PTP edge that knows."""

    def __init__(self, clocks):
        self.clocks, self.known, self.forgot, self.closed = clocks, True, 0, False

    def tick(self, clocks):
        now = clocks.now()
        whose = Grandmaster(0xABC, 6, 0x21, 0, 37, True, True, 0)
        time = Linear(now, NOW + now, 0.0, 0.0)
        return MasterTime(time, 5000.0, 1e-9, 4000.0, whose, True) if self.known else None

    def forget(self):
        self.forgot += 1
        self.known = False

    def close(self):
        self.closed = True


def test_a_host_with_a_master_publishes_tai_and_tells_the_others(
    make, run_dir, clocks, monkeypatch
):
    edge = Edge(clocks)
    service = make(edge=edge)
    for _ in range(3):
        clocks.ns += 10**8
        service.tick()
    with TaiReader(run_dir) as reader:
        said = reader.line()
    assert (said.line.state, said.line.reference) == (State.LOCKED, 7)
    assert said.line.fabric_ns == NOW + clocks.ns
    assert said.source.utc_offset_s == 37
    assert {Trace, Origin} < {type(word) for word in told(run_dir)}
    monkeypatch.setattr(module, "_asleep", lambda: 10**12)
    clocks.ns += 10**8
    service.tick()
    assert edge.forgot == 1
    assert service.tai.said.line.state is State.UNSYNCED, "the clock under it is another"
    service.close()
    assert edge.closed


def test_a_host_without_a_master_hears_tai_of_another(make, run_dir, clocks):
    service = make()
    file = run_dir / "prober" / "ring"
    file.write_bytes(ring_with(run_dir))
    for _ in range(3):
        clocks.ns += 10**8
        service.tick()
    fabric = service.core.seen(clocks.ns)
    words = [
        encode(Trace(fabric.tag, 8, fabric.time.ns, 10**15, 0.0, 5000.0, 1e-9, fabric.under)),
        encode(Origin(fabric.tag, 8, fabric.time.ns, 0xABC, 6, 0x21, 0, 37, True, 0)),
    ]
    file.write_bytes(ring_with(run_dir, *words))
    clocks.ns += 10**8
    service.tick()
    said = service.tai.said
    assert said.line.reference == 8
    assert said.line.fabric_ns - service.core.seen(clocks.ns).time.ns == 10**15
    assert said.source.grandmaster == 0xABC
    assert service.refused == 0


def test_rings_come_go_and_are_damaged(make, run_dir, clocks):
    service = make()
    ring = run_dir / "prober" / "ring"
    for content in (None, b"", b"\xff" * 100, bytes(lay.RING_FILE_SIZE), bytes(ring_with(run_dir)),
                    None):  # fmt: skip
        if content is None:
            ring.unlink(missing_ok=True)
        else:
            draft = run_dir / "draft"
            draft.write_bytes(content)
            draft.rename(ring)
        for _ in range(2):
            clocks.ns += 10**8
            service.tick()
    assert service.core.status.state is State.LOCKED


def test_after_the_host_slept_everything_begins_anew(make, clocks, monkeypatch):
    service = make()
    service.tick()
    clocks.ns += 10**8
    service.tick()
    epoch = service.core.epoch
    monkeypatch.setattr(module, "_asleep", lambda: 10**12)
    clocks.ns += 10**8
    service.tick()
    assert service.core.epoch > epoch


def test_the_next_service_has_later_epochs(make, run_dir, clocks):
    first = make()
    first.core.epoch += 10**9  # as if it had begun long after now
    first.tick()
    first.close()
    second = make()
    assert second.core.epoch > first.core.epoch


def test_without_a_place_for_its_pages_it_does_not_start(tmp_path, clocks):
    with pytest.raises(OSError, match="No such file"):
        ClockService(7, tmp_path / "nowhere", priority=100, clocks=clocks)


def test_over_a_restart_readers_have_time_all_the_while(make, run_dir, clocks):
    first = make()
    for _ in range(3):
        clocks.ns += 10**8
        first.tick()
    first.close()
    with ClockReader(run_dir) as reader:
        before = reader._line
        second = make(rules=HostRules())  # listens for 3 s
        for _ in range(40):
            clocks.ns += 10**8
            second.tick()
            line = reader._load()
            said = line.at(clocks.ns)
            assert abs(said.ns - before.at(clocks.ns).ns) <= 2
            assert said.epoch == before.epoch
    assert second.core.status.state is State.LOCKED
    assert line.raw_ns == clocks.ns, "and the new one publishes again"


HOUR = 3600 * 10**9


def lived(make, clocks):
    """A service has published fabric time and TAI, and ended."""
    first = make(edge=Edge(clocks))
    for _ in range(3):
        clocks.ns += 10**8
        first.tick()
    first.close()


def said(run_dir):
    with ClockReader(run_dir) as clock, TaiReader(run_dir) as tai:
        return clock._line, tai.line().line


@pytest.mark.parametrize("way", ["slept", "booted", "damaged"])
def test_pages_of_before_sleep_or_boot_are_not_believed(make, run_dir, clocks, monkeypatch, way):
    asleep, boot = 5 * HOUR, "one"
    monkeypatch.setattr(module, "_asleep", lambda: asleep)
    monkeypatch.setattr(module, "this_boot", lambda slept: Boot(boot, slept))
    lived(make, clocks)
    epoch = said(run_dir)[0].epoch
    clocks.ns += 10**9
    if way == "slept":
        asleep += HOUR
    elif way == "booted":
        boot = "two"
    else:
        (run_dir / "clock-boot.json").write_text("{")
    second = make(rules=HostRules())
    assert [line.state for line in said(run_dir)] == [State.UNSYNCED] * 2, "at once"
    clocks.ns += 10**8
    second.tick()
    assert [line.state for line in said(run_dir)] == [State.UNSYNCED] * 2
    assert second.core.epoch > epoch
    for _ in range(40):
        clocks.ns += 10**8
        second.tick()
    found = said(run_dir)
    assert (found[0].state, found[1].state) == (State.LOCKED, State.UNSYNCED)
    second.close()
    clocks.ns += 10**8
    make(rules=HostRules()).tick()
    assert said(run_dir)[0] == found[0], "that page is of this boot and of after the sleep"


def test_sleep_that_the_service_saw_is_none_of_the_page_it_leaves(
    make, run_dir, clocks, monkeypatch
):
    asleep = 0
    monkeypatch.setattr(module, "_asleep", lambda: asleep)
    first = make()
    first.tick()
    asleep = HOUR
    for _ in range(5):
        clocks.ns += 10**8
        first.tick()
    first.close()
    found = said(run_dir)[0]
    assert found.state is State.LOCKED
    clocks.ns += 10**8
    make(rules=HostRules()).tick()
    assert said(run_dir)[0] == found


def test_a_page_of_the_version_before_is_taken_as_it_is(make, run_dir, clocks):
    lived(make, clocks)
    (run_dir / "clock-boot.json").unlink()
    found = said(run_dir)
    clocks.ns += 10**8
    make(rules=HostRules()).tick()
    assert said(run_dir)[0] == found[0]


def test_a_directory_that_takes_no_file_keeps_no_service_from_starting(make, run_dir, clocks):
    (run_dir / "clock-boot.json").mkdir()
    service = make()
    clocks.ns += 10**8
    service.tick()
    assert said(run_dir)[0].state is State.LOCKED


def test_a_reference_that_falls_silent_while_others_speak_is_lost_at_once(
    make, run_dir, clocks, monkeypatch
):
    """By the rows of its paths: no sample has to be read, and no step taken."""
    monkeypatch.setattr(module, "monotonic_ns", lambda: clocks.ns)
    gauge = Gauge(8, NOW)
    reference = Reference(gauge.tag, 1, 8, 1, NOW, 0, 0.0, 0.0)
    said = [encode(gauge), encode(Mesh(gauge.tag, 10**9, NOW, 0.0, 0.0, 8)), encode(reference)]
    file, data = run_dir / "prober" / "ring", ring_with(run_dir)
    file.write_bytes(data)
    service = make(rules=HostRules())
    service.tick()

    def heard(*paths, after_ns=25_000_000):
        clocks.ns += after_ns
        for path in paths:
            at = lay.PATH_OFFSET + path * lay.PATH_ROW.size
            put(data, lay.PATH_ROW, at, last_heard_ns=clocks.ns)
        file.write_bytes(data)

    for number in range(3):
        sample_at(data, number, path=0, config=1, word=struct.unpack("<4Q", said[number]))
    put(data, lay.RING_HEADER, 0, sample_head=3)
    heard(0, 1)
    service.tick()
    assert service.core.election.reference == reference
    service.core.mesh = Linear(clocks.ns, NOW, 0.0, 0.0)
    for _ in range(3):
        heard(1)
        service.glance()
        assert service.core.election.alive(reference, NOW), "not for long enough"
    heard(1)
    put(data, lay.RING_HEADER, 0, config_epoch=2)
    file.write_bytes(data)
    service.glance()
    assert service.core.election.alive(reference, NOW), "rows of other paths"
    put(data, lay.RING_HEADER, 0, config_epoch=1)
    heard(1, after_ns=0)
    service.glance()
    assert not service.core.election.alive(reference, NOW), "the peer of path 1 was heard meanwhile"
    later = reference._replace(mesh_ns=NOW + 10**9)
    assert service.core.election.alive(later, NOW + 10**9), "what it says later shows that it lives"


def test_a_path_that_never_was_heard_hides_no_silence_of_the_others(run_dir):
    data = fresh_ring(paths=3)
    for index, (host, heard) in enumerate([(8, 0), (8, 5 * 10**9), (9, 6 * 10**9)]):
        put(data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
            flags=lay.PATH_CLOCK, host_id=host, peer_incarnation=5, port=9200 + index,
            last_heard_ns=heard)  # fmt: skip
    (run_dir / "prober" / "ring").write_bytes(data)
    table = PathTable(run_dir, lambda _: None, lambda _: None)
    table.read(10**9)
    assert table.silent(8, 6 * 10**9) == 10**9
    assert table.silent(8, 5 * 10**9 + 1) is None, "heard a moment ago"
    assert table.silent(9, 6 * 10**9) is None
    assert table.silent(7, 6 * 10**9) is None, "no path leads there"
    table.close()


def test_paths_that_the_configuration_has_no_more_are_gone(run_dir):
    void = []
    table = PathTable(run_dir, lambda path: void.append(path.number), lambda _: None)
    file, data = run_dir / "prober" / "ring", ring_with(run_dir)
    file.write_bytes(data)
    now = 10**12
    table.read(now)
    assert [path.key.host for path in table.all()] == [8, 9]

    def configured(epoch, paths, seconds):
        nonlocal now
        put(data, lay.RING_HEADER, 0, config_epoch=epoch, path_count=paths)
        file.write_bytes(data)
        for _ in range(round(seconds * 10)):
            now += 10**8
            table.read(now)

    configured(2, 0, 0.9)
    assert len(table.all()) == 2, "they are still to be written"
    configured(2, 2, 2)
    assert len(table.all()) == 2
    configured(0, 0, 5)
    assert len(table.all()) == 2, "a prober that was told nothing yet"
    configured(3, 0, 1.5)
    assert table.all() == []
    assert void == [0, 1]
    configured(4, 2, 0.5)
    assert len(table.all()) == 2
    configured(5, 0, 1.5)
    assert table.all() == [], "each time anew"
    table.close()


def test_when_nothing_is_heard_at_all_nobody_is_to_blame(make, run_dir, clocks, monkeypatch):
    monkeypatch.setattr(module, "monotonic_ns", lambda: clocks.ns)
    gauge = Gauge(8, NOW)
    reference = Reference(gauge.tag, 1, 8, 1, NOW, 0, 0.0, 0.0)
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir))
    service = make(rules=HostRules())
    service.tick()
    said = [encode(gauge), encode(Mesh(gauge.tag, 10**9, NOW, 0.0, 0.0, 8)), encode(reference)]
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir, *said))
    service.tick()
    service.core.mesh = Linear(clocks.ns, NOW, 0.0, 0.0)
    for _ in range(4):
        clocks.ns += 10**8
        service.tick()
    assert service.core.election.alive(reference, NOW)


OWN, PEER = bytes(10) + b"\xff\xff\x0a\0\0\x01", bytes(10) + b"\xff\xff\x0a\0\0\x02"
ENDS = Ends("10.0.0.1", "10.0.0.2", 9200, 8)


def ring_to_a_peer(run_dir, flags=0):
    data = fresh_ring(0, 0, paths=1)
    put(data, lay.LINK_ROW, lay.LINK_OFFSET, address=OWN, port=9200)
    put(data, lay.PATH_ROW, lay.PATH_OFFSET, flags=lay.PATH_CLOCK | flags, host_id=8,
        peer_incarnation=5, address=PEER, port=9200)  # fmt: skip
    draft = run_dir / "draft"
    draft.write_bytes(data)
    draft.rename(run_dir / "prober" / "ring")


def asked(run_dir):
    page = PortPage(run_dir / "prober")
    page.close()
    return page.held


def test_source_ports_outlive_the_service_and_go_with_their_path(make, run_dir, clocks):
    other = ENDS._replace(peer="10.0.0.9")
    page = PortPage(run_dir / "prober")
    page.write({ENDS: 61001, other: 61002})
    page.close()
    service = make()
    service.tick()
    assert asked(run_dir) == {ENDS: 61001, other: 61002}, "without a prober what was told holds"
    ring_to_a_peer(run_dir, 61001 << lay.PATH_PORT_SHIFT)
    clocks.ns += 2 * 10**9
    service.tick()
    assert asked(run_dir) == {ENDS: 61001, other: 61002}
    assert service.core.mover.paths[0].port == 61001
    assert service.core.taken[0].port == 61001
    service.core.mover.paths[0].ask(0)
    clocks.ns += 2 * 10**9
    service.tick()
    assert asked(run_dir) == {other: 61002}
    clocks.ns += FOUND_NS
    service.tick()
    assert asked(run_dir) == {}, "a path that has not come by now is no more"


def test_without_leave_to_move_what_was_moved_goes_back(make, run_dir, clocks):
    page = PortPage(run_dir / "prober")
    page.write({ENDS: 61001})
    page.close()
    service = make(may_move=False)
    ring_to_a_peer(run_dir, 61001 << lay.PATH_PORT_SHIFT)
    service.tick()
    assert asked(run_dir) == {}


@pytest.mark.parametrize(
    "flags", [61001 << lay.PATH_PORT_SHIFT, 1 << lay.PATH_PEER_MOVES_SHIFT], ids=["ours", "theirs"]
)
def test_when_an_end_moves_what_was_learnt_of_the_path_is_dropped(make, run_dir, clocks, flags):
    service = make()
    ring_to_a_peer(run_dir)
    service.tick()
    edge = service.core.edge(0, 8)
    edge.surplus.look(500.0, clocks.ns)
    path = service.table.by_index[0]
    path.fit_ns = 2**62
    path.estimator.last = object()
    service.table._rows_s = 0.0
    service.tick()
    assert path.estimator.last is not None
    assert edge.surplus_ns == 500.0
    ring_to_a_peer(run_dir, flags)
    service.table._rows_s = 0.0
    service.tick()
    assert path is service.table.by_index[0]
    assert path.estimator.last is None
    assert service.core.edge(0, 8).surplus_ns is None


def test_one_way_delays_are_told_with_both_ends_bounds(make, run_dir, clocks):
    service = make()
    ring_to_a_peer(run_dir)
    service.tick()
    edge, path = service.core.edge(0, 8), service.table.by_index[0]
    path.estimator.last = Pair(
        clocks.ns, 0, 5.0, 0.0, 900.0, 900.0, 2.0, 1e-9, 2 * 10**9, clocks.ns, (1.0, 1.0), 0.0,
        5e-9, 4.0,
    )  # fmt: skip
    edge.surplus.look(150.0, clocks.ns)
    service.core.status.bound_ns, service.core.status.reference = 700.0, 7
    for reference, within in ((7, 700.0 + 300.0 + 8.0), (9, None)):
        edge.time = Time(1, reference, 0, clocks.ns, NOW, 300.0, 0.0)
        (row,) = telling(service.core, service.table.all(), service.phcs)["paths"]
        assert (row["out_ns"], row["back_ns"]) == (1050.0, 750.0)
        assert row["way_bound_ns"] == within
