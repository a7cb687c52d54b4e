"""The clock service around its core: files that come, go or are damaged, messages from a ring."""

import json
import struct

import pytest
from clock_services import NOW, ring_with
from structlog.testing import capture_logs

from clocksync.mesh.codec import decode, encode
from clocksync.mesh.messages import Mesh, MeshId, Origin, Reference, Time, Trace
from clocksync.mesh.model import HostRules
from clocksync.page.clock_page import ClockReader, State
from clocksync.page.outbox import KIND, MOST, SIZE
from clocksync.page.tai_page import TaiReader
from clocksync.pair.linear import Linear
from clocksync.pair.model import Rules
from clocksync.ptp.client import Grandmaster, MasterTime
from fabricd.clock import service as module
from fabricd.clock.boot import Boot
from fabricd.clock.service import ClockService
from fabricd.clock.status_reader import NAME
from fabricd.probes import layout as lay
from lab.inputs.ring_file import put


def told(run_dir):
    """What lies on the page of messages."""
    data = (run_dir / "prober" / "clock-outbox").read_bytes()
    at = KIND.place(struct.unpack_from("<Q", data, 8)[0]).start + 16
    messages = [data[at + n * SIZE : at + n * SIZE + SIZE] for n in range(MOST)]
    return [decode(message) for message in messages if message[0]]


def test_a_host_alone_begins_a_mesh_and_gives_its_own_time(make, run_dir, clocks):
    service = make()
    service.tick()
    clocks.ns += 10**8
    service.tick()
    with ClockReader(run_dir) as reader:
        line = reader._line
    assert (line.state, line.reference) == (State.LOCKED, 7)
    assert line.raw_ns == clocks.ns
    kinds = {type(message) for message in told(run_dir)}
    assert kinds == {Mesh, MeshId, Reference, Time}
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


def test_messages_in_the_ring_are_heard_and_damaged_ones_counted(make, run_dir, clocks):
    mesh_id = MeshId(8, NOW)
    said = [
        encode(mesh_id),
        encode(Mesh(mesh_id.tag, 10**9, NOW, 0.0, 0.0, 8)),
        b"\x77" + bytes(31),
    ]
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir))
    service = make(rules=HostRules())
    service.tick()
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir, *said))
    service.tick()
    edge = service.core.edges[0]
    assert (edge.peer, edge.mesh_id) == (8, mesh_id)
    assert edge.mesh.mesh_ns == NOW
    assert service.refused == 1
    assert service.core.mesh_id == mesh_id, "the neighbour's mesh is the one to be in"
    service.store()
    document = json.loads((run_dir / NAME).read_text())
    assert (document["refused_messages"], document["refused_words"]) == (1, 1)


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
    distrusted = []
    service.core.distrust = lambda: distrusted.append(clocks.ns)

    def found_shorter(_now):
        paths[1].estimator.shorter = True

    with capture_logs() as logs:
        paths[0].estimator.estimate = lambda now: None
        paths[1].estimator.estimate = found_shorter
        for life in range(1, 3):
            for _ in range(8):
                clocks.ns += 10**8
                service.tick()
            assert len(distrusted) == life, "bounds rested on it, in each life of the path"
            paths[1].reset()
            assert not paths[1].estimator.shorter
    paths[1].estimator.shorter = True
    said = [each for each in logs if "least_way_ns" in each["event"]]
    assert [each["peer"] for each in said] == [paths[1].key.address]
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
    assert {Trace, Origin} < {type(message) for message in told(run_dir)}
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
    messages = [
        encode(Trace(fabric.tag, 8, fabric.time.ns, 10**15, 0.0, 5000.0, 1e-9, fabric.under)),
        encode(Origin(fabric.tag, 8, fabric.time.ns, 0xABC, 6, 0x21, 0, 37, True, 0)),
    ]
    file.write_bytes(ring_with(run_dir, *messages))
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


def test_over_a_clock_that_went_back_paths_are_fitted_at_once(make, run_dir, clocks):
    (run_dir / "prober" / "ring").write_bytes(ring_with(run_dir))
    service = make()

    def run():
        before = service.fit_scheduler.fits
        for _ in range(20):
            clocks.ns += 10**8
            service.tick()
        return service.fit_scheduler.fits - before

    run()
    usual = run()
    assert usual >= 4
    path = service.table.all()[0]
    path.deaf_ns = clocks.ns + 10**8
    clocks.ns -= 500 * 10**9
    assert run() >= usual, "and not when it is as late again as it was"
    assert path.deaf_ns <= clocks.ns


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
