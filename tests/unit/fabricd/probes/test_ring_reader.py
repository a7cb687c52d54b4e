"""The ring reader: good files, files that lie, and a writer at full speed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.probes import layout as lay
from fabricd.probes.records import (
    CarrierRecord,
    CarrierSource,
    Direction,
    HeardRecord,
    MissRecord,
    PeerRestartRecord,
    Refusal,
    StallRecord,
)
from fabricd.probes.ring import RingError, RingReader
from lab.inputs.ring_file import event_at, fresh_ring, put, sample_at


@pytest.fixture
def ring(tmp_path):
    def write(data: bytes) -> Path:
        path = tmp_path / "ring"
        path.write_bytes(data)
        return path

    return write


def test_tables_and_header(ring):
    with RingReader(ring(fresh_ring())) as reader:
        header = reader.header()
        assert (header.incarnation, header.pid, header.running, header.realtime) == (
            99,
            42,
            True,
            True,
        )
        assert header.refused == dict(zip(Refusal, range(1, 8), strict=True))
        (link,) = reader.links()
        assert (link.netdev, link.address, link.port) == ("rail0", "10.0.0.1", 9200)
        assert (link.present, link.bound, link.carrier) == (True, True, True)
        assert (link.source, link.downs) == (CarrierSource.SYSFS, 2)
        (path,) = reader.paths()
        assert (path.address, path.clock, path.established) == ("fd00::2", True, True)
        assert path.rx_bitmap == 2**64 - 1
        assert reader.corrupt == 0
        assert (header.synchronized, header.due_times_refused) == (False, 0)
        assert (path.by_due_time, path.late_ns) == (False, 0)


def test_a_prober_that_goes_by_fabric_time(ring):
    data = fresh_ring()
    flags = 1 | lay.HEADER_SYNCHRONIZED
    put(data, lay.RING_HEADER, 0, flags=flags, due_times_refused=4, clock_read_ns=55)
    put(data, lay.PATH_ROW, lay.PATH_OFFSET, flags=lay.PATH_BY_DUE_TIME, late_ns=2_600_000)
    with RingReader(ring(data)) as reader:
        header = reader.header()
        assert (header.synchronized, header.due_times_refused) == (True, 4)
        assert header.clock_read_ns == 55
        (path,) = reader.paths()
        assert (path.by_due_time, path.late_ns) == (True, 2_600_000)


def test_one_path_can_be_looked_at_alone(ring):
    data = fresh_ring(paths=3)
    put(data, lay.PATH_ROW, lay.PATH_OFFSET + lay.PATH_ROW.size, last_heard_ns=77)
    put(data, lay.PATH_ROW, lay.PATH_OFFSET + 2 * lay.PATH_ROW.size, last_heard_ns=88, seq=5)
    with RingReader(ring(data)) as reader:
        assert [reader.last_heard_ns(index) for index in range(3)] == [0, 77, 0], "one is written"
        assert [path.last_heard_ns for path in reader.paths()] == [0, 77]


def test_every_kind_of_event(ring):
    data = fresh_ring(events=7)
    event_at(data, 0, mono_ns=10, kind=1, flags=lay.FLAG_CARRIER, count=2, value=(5, 6, 9, 7))
    event_at(
        data, 1, mono_ns=11, kind=2, flags=lay.FLAG_TX | lay.FLAG_INCONCLUSIVE, count=3,
        path=4, value=(100, 150, 7, 0),
    )  # fmt: skip
    event_at(data, 2, mono_ns=12, kind=3, flags=lay.FLAG_FIRST, path=4, value=(1, 0, 0, 0))
    event_at(data, 3, mono_ns=13, kind=4, link=lay.NONE, path=lay.NONE, value=(20, 30, 0, 0))
    event_at(data, 4, mono_ns=14, kind=5, path=4, value=(111, 222, 0, 0))
    event_at(data, 5, mono_ns=15, kind=77)
    event_at(data, 6, mono_ns=16, kind=2, count=1, path=4, value=(100, 150, 7, 9))
    path = ring(data)
    with RingReader(path, from_start=True) as reader:
        assert reader.events() == [
            CarrierRecord(0, 10, 1, 0, 2, True, 5, 6, 9, False, False, False),
            MissRecord(1, 11, 1, 0, 4, Direction.TX, 3, True, 100, 150, 7),
            HeardRecord(2, 12, 1, 0, 4, Direction.RX, 0, True, 1, False),
            StallRecord(3, 13, 1, 20, 30),
            PeerRestartRecord(4, 14, 1, 0, 4, 111, 222),
            MissRecord(6, 16, 1, 0, 4, Direction.RX, 1, False, 100, 150, 7, due_ns=9),
        ]
        assert reader.corrupt == 1
        assert reader.lost_events == 0
        assert reader.events() == []
    with RingReader(path) as reader:
        assert reader.events() == []


def test_reader_that_fell_behind_learns_how_much_it_lost(ring):
    head = 3 * lay.EVENT_SLOTS + 17
    data = fresh_ring(events=head)
    for number in range(head - lay.EVENT_SLOTS, head):
        event_at(data, number, mono_ns=number, kind=4, link=lay.NONE, path=lay.NONE)
    path = ring(data)
    with RingReader(path) as reader:
        reader._events.next = 100
        seen = reader.events(limit=lay.EVENT_SLOTS)
        assert [e.index for e in seen] == list(range(head - lay.EVENT_SLOTS + 1, head))
        assert reader.lost_events == head - lay.EVENT_SLOTS + 1 - 100
        assert reader.corrupt == 0


def test_half_written_rows_and_records_are_refused(ring):
    data = fresh_ring(events=2)
    event_at(data, 0, kind=4, link=lay.NONE)
    event_at(data, 1, kind=4, link=lay.NONE)
    put(data, lay.EVENT_RECORD, lay.EVENT_OFFSET, index=0)
    put(data, lay.PATH_ROW, lay.PATH_OFFSET, seq=5)
    with RingReader(ring(data), from_start=True) as reader:
        assert [e.index for e in reader.events()] == [1]
        assert reader.corrupt == 1
        assert reader.paths() == []
        assert reader.corrupt == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"magic": 1}, "magic"),
        ({"version": lay.RING_VERSION + 1}, "version"),
        ({"event_slots": 4}, "event_slots"),
        ({"sample_offset": 2**63}, "sample_offset"),
        ({"link_count": 65}, r"65\+0 links"),
        ({"path_count": 2**32 - 1}, "paths cannot be"),
    ],
)
def test_bad_headers(ring, change, text):
    data = fresh_ring()
    put(data, lay.RING_HEADER, 0, **change)
    with pytest.raises(RingError, match=text):
        RingReader(ring(data))


def test_not_a_ring(tmp_path, ring):
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero")):
        with pytest.raises(RingError, match=str(path)):
            RingReader(path)
    link = tmp_path / "link"
    link.symlink_to(ring(fresh_ring()))
    with pytest.raises(RingError):
        RingReader(link)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(RingError, match="regular"):
        RingReader(fifo)


@pytest.mark.parametrize("size", [0, 1, 255, 4096, lay.RING_FILE_SIZE - 1, lay.RING_FILE_SIZE + 1])
def test_wrong_size(ring, size):
    with pytest.raises(RingError, match=f"{size} bytes"):
        RingReader(ring((fresh_ring() + b"\0")[:size]))


def test_truncated_while_open(ring):
    path = ring(fresh_ring())
    with RingReader(path) as reader:
        os.truncate(path, 100)
        for read in (reader.header, reader.links, reader.paths, reader.events, reader.samples):
            with pytest.raises(RingError, match="100 bytes"):
                read()


def test_replaced(ring, tmp_path):
    path = ring(fresh_ring())
    with RingReader(path) as reader:
        assert not reader.replaced()
        (tmp_path / "new").write_bytes(fresh_ring())
        (tmp_path / "new").rename(path)
        assert reader.replaced()
        path.unlink()
        assert reader.replaced()


def test_closed(ring):
    reader = RingReader(ring(fresh_ring()))
    reader.close()
    reader.close()
    with pytest.raises(RingError, match="closed"):
        reader.header()


# Where something lies: header, rows, and records that the head says are there.
AREAS = [
    (0, lay.RING_HEADER.size),
    (lay.LINK_OFFSET, 3 * lay.LINK_ROW.size),
    (lay.PATH_OFFSET, 3 * lay.PATH_ROW.size),
    (lay.EVENT_OFFSET, 40 * lay.EVENT_RECORD.size),
    (lay.SAMPLE_OFFSET, 40 * lay.SAMPLE_RECORD.size),
]


@st.composite
def damage(draw):
    start, size = draw(st.sampled_from(AREAS))
    at = draw(st.integers(start, start + size - 1))
    return at, draw(st.binary(min_size=1, max_size=64))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    data = fresh_ring(events=40, samples=40)
    put(data, lay.RING_HEADER, 0, link_count=3, path_count=3)
    for number in range(40):
        event_at(data, number, mono_ns=number, kind=1 + number % 5, link=0, path=0)
        sample_at(data, number, flags=3)
    path = tmp_path_factory.mktemp("ring") / "ring"
    path.write_bytes(data)
    return path, bytes(data)


@given(st.lists(damage(), min_size=1, max_size=12))
def test_a_damaged_ring_never_does_worse_than_a_ring_error(sound, wounds):
    path, good = sound
    with path.open("r+b") as file:
        for at, junk in wounds:
            file.seek(at)
            file.write(junk)
        file.flush()
        try:
            with RingReader(path, from_start=True) as reader:
                total = 0
                for _ in range(3):
                    reader.header()
                    total += len(reader.events()) + len(reader.samples())
                    reader.links()
                    reader.paths()
                assert total <= 2 * 3 * 4096
        except RingError:
            return  # refused as a whole: the other allowed outcome
        finally:
            for at, junk in wounds:
                file.seek(at)
                file.write(good[at : at + len(junk)])


@pytest.mark.parametrize("pace", [[], ["500", "200"]])
def test_no_torn_record_under_a_writer_at_full_speed(native, tmp_path, pace):
    path = tmp_path / "ring"
    count = 3_000_000 if not pace else 200_000
    writer = subprocess.Popen([native("prober/fabric_ring_stress"), path, str(count), *pace])
    try:
        while not path.exists():
            assert writer.poll() is None
        seen = 0
        with RingReader(path, from_start=True) as reader:
            expected = -1
            while True:
                done = writer.poll() is not None
                for event in reader.events(limit=512):
                    assert isinstance(event, StallRecord)
                    number = event.index
                    assert number > expected
                    expected = number
                    assert (event.mono_ns, event.gap_ns, event.start_ns) == (
                        number,
                        number * 3,
                        number * 7,
                    )
                    seen += 1
                for sample in reader.samples(limit=128):
                    assert {sample.mono_ns, sample.t1_ns, sample.t4_ns} == {sample.index}
                for row in reader.paths():
                    assert row.sent == row.received == row.rx_bitmap == row.tx_bitmap
                if done and reader.header().event_head == expected + 1:
                    break
            # Nothing came twice and nothing vanished without being counted.
            assert seen + reader.lost_events == count
            assert not reader.header().running
        assert writer.wait(60) == 0
    finally:
        writer.kill()
        writer.wait()
