"""The clock service and the paths of its ring: who fell silent, what is gone, where it is moved."""

import io
import struct

import numpy as np
import pytest
from clock_services import NOW, ring_with
from rich.console import Console

from clocksync.mesh.codec import encode
from clocksync.mesh.messages import Mesh, MeshId, Reference, Time
from clocksync.mesh.model import HostRules
from clocksync.page.clock_page import State
from clocksync.page.ports import Ends, PortPage
from clocksync.pair.linear import Linear
from clocksync.pair.model import SECOND, Pair
from fabricd.cli.clock_command import sources
from fabricd.clock import service as module
from fabricd.clock.paths import PathTable
from fabricd.clock.service import FOUND_NS
from fabricd.clock.status_writer import status_document
from fabricd.probes import layout as lay
from lab.inputs.ring_file import fresh_ring, put, sample_at


def test_a_reference_that_falls_silent_while_others_speak_is_lost_at_once(
    make, run_dir, clocks, monkeypatch
):
    """By the rows of its paths: no sample has to be read, and no step taken."""
    monkeypatch.setattr(module, "monotonic_ns", lambda: clocks.ns)
    mesh_id = MeshId(8, NOW)
    reference = Reference(mesh_id.tag, 1, 8, 1, NOW, 0, 0.0, 0.0)
    said = [encode(mesh_id), encode(Mesh(mesh_id.tag, 10**9, NOW, 0.0, 0.0, 8)), encode(reference)]
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
        sample_at(data, number, path=0, config=1, clock_message=struct.unpack("<4Q", said[number]))
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
    mesh_id = MeshId(8, NOW)
    reference = Reference(mesh_id.tag, 1, 8, 1, NOW, 0, 0.0, 0.0)
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir))
    service = make(rules=HostRules())
    service.tick()
    said = [encode(mesh_id), encode(Mesh(mesh_id.tag, 10**9, NOW, 0.0, 0.0, 8)), encode(reference)]
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir, *said))
    service.tick()
    service.core.mesh = Linear(clocks.ns, NOW, 0.0, 0.0)
    for _ in range(4):
        clocks.ns += 10**8
        service.tick()
    assert service.core.election.alive(reference, NOW)


def given_pair(now_ns):
    """A line between two clocks that are 5 ns apart, as of now."""
    return Pair(
        now_ns, 0, 5.0, 0.0, 900.0, 900.0, 2.0, 1e-9, 2 * 10**9, now_ns, (1.0, 1.0), 0.0,
        5e-9, 4.0,
    )  # fmt: skip


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
    path.came.append(np.zeros((7, 0), np.int64))
    service.table._rows_s = 0.0
    service.tick()
    assert path.estimator.last is not None
    assert path.came
    assert edge.surplus_ns == 500.0
    ring_to_a_peer(run_dir, flags)
    service.table._rows_s = 0.0
    service.tick()
    assert path is service.table.by_index[0]
    assert path.estimator.last is None
    assert not path.came, "nor is what was not taken apart yet"
    assert service.core.edge(0, 8).surplus_ns is None


def test_one_way_delays_are_told_with_both_ends_bounds(make, run_dir, clocks):
    service = make()
    ring_to_a_peer(run_dir)
    service.tick()
    edge, path = service.core.edge(0, 8), service.table.by_index[0]
    path.estimator.last = given_pair(clocks.ns)
    edge.surplus.look(150.0, clocks.ns)
    service.core.status.bound_ns, service.core.status.reference = 700.0, 7
    for reference, within in ((7, 700.0 + 300.0 + 8.0), (9, None)):
        edge.time = Time(1, reference, 0, clocks.ns, NOW, 300.0, 0.0)
        (row,) = status_document(service.core, service.table.all(), service.phcs)["paths"]
        assert (row["out_ns"], row["back_ns"]) == (1050.0, 750.0)
        assert row["way_bound_ns"] == within


def ring_with_rdma(run_dir, *, trains, udp_ns, rdma_ns, others_ns):
    """A UDP path to host 8 and one to host 9, and over RDMA one to host 8.

    Args:
        run_dir: where the ring is written.
        trains: whether the RDMA path carries them.
        udp_ns: when the UDP path of host 8 last heard something.
        rdma_ns: likewise, its RDMA path.
        others_ns: likewise, the path to host 9.
    """
    data = fresh_ring(links=1, paths=2)
    put(data, lay.RING_HEADER, 0, rdma_link_count=1, rdma_path_count=1)
    link = lay.LINK_OFFSET + lay.LINK_ROW.size
    data[link : link + lay.LINK_ROW.size] = data[lay.LINK_OFFSET : link]
    put(data, lay.LINK_ROW, link, port=4791, flags=lay.LINK_RDMA | lay.LINK_BOUND)
    rdma = lay.PATH_RDMA | (lay.PATH_CLOCK if trains else 0)
    rows = [
        (8, 0, 9200, lay.PATH_CLOCK, udp_ns),
        (9, 0, 9200, lay.PATH_CLOCK, others_ns),
        (8, 1, 4791, rdma, rdma_ns),
    ]
    for index, (host, link_index, port, flags, heard_ns) in enumerate(rows):
        put(data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
            seq=2, address=b"\xfd" + bytes(14) + bytes([host]), port=port, link=link_index,
            flags=flags, host_id=host, peer_incarnation=5, last_heard_ns=heard_ns)  # fmt: skip
    (run_dir / "prober" / "ring").write_bytes(data)


def shown_paths(service):
    return status_document(service.core, service.table.all(), service.phcs)["paths"]


def test_a_path_over_rdma_is_one_of_the_clock_while_it_carries_trains(make, run_dir, clocks):
    service = make()
    seen = []
    for trains, after_ns in [(False, 10**8), (True, 10**8), (False, 10**8), (False, 5 * 10**9)]:
        ring_with_rdma(run_dir, trains=trains, udp_ns=1, rdma_ns=1, others_ns=1)
        clocks.ns += after_ns  # at the next step, long before the rows are looked at anyway
        service.tick()
        rows = shown_paths(service)
        seen.append([(row["host"], row["rdma"]) for row in rows])
        assert len(service.core.mover.paths) == 2, "no port moves a queue pair"
        text = Console(width=200, record=True, file=io.StringIO())
        text.print(sources([row | {"name": f"h{row['host']}"} for row in rows]))
        assert ("rail0 → fd00::8, RDMA" in text.export_text()) == seen[-1][-1][1]
    both = [(8, False), (9, False)]
    # It stays for a while: UDP may have no line yet.
    assert seen == [both, [*both, (8, True)], [*both, (8, True)], both]


STEP_NS = 4 * 10**8
"""Between two messages; of half a second would be a gap."""


@pytest.fixture
def talk(make, run_dir, clocks):
    """A service that hears host 8.

    Called with a path of the ring and seconds it returns, for each message, by how many paths the
    service sees its neighbour; ``states`` are the service's own.
    """
    service = make(rules=HostRules())
    mesh_id = MeshId(8, NOW)
    began_ns, count = clocks.ns, 0

    def line(path):
        service.core.estimate(service.table.by_index[path].number, 8, given_pair(clocks.ns))

    def talk(path, seconds, *, lined=True):
        nonlocal count
        used = []
        for _ in range(round(seconds * SECOND / STEP_NS)):
            clocks.ns += STEP_NS
            ring_with_rdma(run_dir, trains=path == 2, udp_ns=1, rdma_ns=1, others_ns=1)
            file = run_dir / "prober" / "ring"
            data, mesh = bytearray(file.read_bytes()), NOW + clocks.ns - began_ns
            for message in (
                mesh_id,
                Mesh(mesh_id.tag, clocks.ns, mesh, 0.0, 0.0, 8),
                Reference(mesh_id.tag, 1, 8, 1, mesh, 0, 0.0, 0.0),
                Time(mesh_id.tag, 8, 1, clocks.ns, mesh, 100.0, 0.0),
            ):
                words = struct.unpack("<4Q", encode(message))
                sample_at(data, count, path=path, config=1, clock_message=words)
                count += 1
            put(data, lay.RING_HEADER, 0, sample_head=count)
            file.write_bytes(data)
            service.tick()
            if lined:
                line(path)
            used.append(service.core.status.neighbours)
            talk.states.append(service.core.status.state)
        return used

    talk.service, talk.states = service, []
    return talk


def test_the_line_of_udp_serves_until_rdma_has_its_own(talk):
    assert talk(0, 6)[-1] == 1
    talk.states.clear()
    assert set(talk(2, 2, lined=False)) == {1}
    assert talk(2, 70)[-1] == 1, "the line of UDP is too old by now"
    assert set(talk.states) == {State.LOCKED}


def test_the_line_of_rdma_serves_until_udp_has_one_again(talk):
    talk(0, 6)
    talk(2, 70)
    talk.states.clear()
    assert set(talk(0, 2, lined=False)) == {1}
    assert set(talk.states) == {State.LOCKED}
    talk(0, 4)
    assert not any(row["rdma"] for row in shown_paths(talk.service))


def in_doubt(estimator):
    def estimate(_now_ns):
        estimator.doubt = True

    return estimate


def test_of_two_lines_that_of_the_path_with_trains_holds(talk, monkeypatch):
    talk(0, 4)
    assert talk(2, 1, lined=False)[-1] == 1
    udp, rdma = (talk.service.table.by_index[index] for index in (0, 2))
    monkeypatch.setattr(rdma.estimator, "estimate", in_doubt(rdma.estimator))
    assert talk(2, 1, lined=False)[-1] == 0, "nor does that of UDP, which nothing corrects"
    pair = given_pair(talk.service.clocks.now())
    monkeypatch.setattr(rdma.estimator, "estimate", lambda _now_ns: pair)
    monkeypatch.setattr(udp.estimator, "estimate", in_doubt(udp.estimator))
    assert set(talk(2, 2, lined=False)[1:]) == {1}, "UDP that is heard one way only"
    monkeypatch.setattr(udp.estimator, "estimate", lambda _now_ns: pair)
    assert set(talk(2, 2, lined=False)) == {1}, "of both, one is used"


def test_a_peer_that_began_anew_is_beside_nothing_of_before(talk, run_dir):
    talk(0, 1)
    talk(2, 1)
    udp, rdma = (talk.service.table.by_index[index] for index in (0, 2))
    assert (udp.beside, rdma.beside) == (rdma, udp)
    file = run_dir / "prober" / "ring"
    data = bytearray(file.read_bytes())
    put(data, lay.PATH_ROW, lay.PATH_OFFSET + 2 * lay.PATH_ROW.size, peer_incarnation=6)
    file.write_bytes(data)
    talk.service.table.read(10**15)
    assert (udp.beside, rdma.beside) == (None, None)


def test_a_host_that_speaks_over_rdma_alone_is_not_silent(run_dir):
    now = 10**10
    for trains in (False, True):
        table = PathTable(run_dir, lambda _: None, lambda _: None)
        ring_with_rdma(run_dir, trains=trains, udp_ns=now - 10**9, rdma_ns=now, others_ns=now)
        table.read(now)
        assert table.silent(8, now) is None
        table.close()
        table = PathTable(run_dir, lambda _: None, lambda _: None)
        silent_ns = now - 5 * 10**8
        ring_with_rdma(run_dir, trains=trains, udp_ns=1, rdma_ns=silent_ns, others_ns=now)
        table.read(now)
        assert table.silent(8, now) == 5 * 10**8, "over neither"
        table.close()
