"""Stats pages are hostile: whatever lies there is decoded right or refused by name."""

import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stats_page_files import NOW, SECOND, lay, make

from telemetry import statslayout as sl
from telemetry import statspage as sp
from telemetry.jobtotals import MAX_STEP, JobTotals
from telemetry.pagefile import PageFile
from telemetry.statsdir import (
    ENDED_RECHECK_NS,
    FORGOTTEN_NS,
    STALE_NS,
    ProcessPage,
    StatsDirectory,
    alive,
    process_seen,
)


def reasons(directory):
    reader = StatsDirectory(directory, seen=lambda *_: True)
    assert reader.scan(NOW) == []
    return dict(reader.refused)


def test_a_valid_page(tmp_path):
    rail = {"netdev": "rail0", "tx_bytes": 5, "stall_ns": 7, "dead_paths": 3, "live_paths": 1}
    lay(tmp_path, make(rails=(rail, "rail1"), errors=9, steer_present=1, job=b"j\x1b[2J\xff"))
    (process,) = StatsDirectory(tmp_path, seen=lambda *_: True).scan(NOW)
    assert process.alive
    assert process.uid == os.getuid()
    page = process.page
    assert (page.key, page.errors, page.steer_present) == ((100, NOW - SECOND), 9, True)
    assert page.job == "j?[2J?"
    assert page.rails[0] == sp.StatsRail(
        "rail0", tx_bytes=5, stall_ns=7, live_paths=1, dead_paths=3
    )
    assert page.rails[1] == sp.StatsRail("rail1")


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (make(magic=1), "magic"),
        (make(version=3), "version"),
        (make(version=0), "version"),
        (make(header_size=128), "size"),
        (make(page_size=4096), "size"),
        (make(rail_count=33), "count"),
        (make(rail_count=2**32 - 1), "count"),
        (make(rails=("rail0", "rail0")), "netdev"),
        (make(rails=("",)), "netdev"),
        (make(rails=("a b",)), "netdev"),
        (make(rails=("a" * 16,)), "netdev"),
        (make(rails=('x"\n',)), "netdev"),
        (make(seq=3), "torn"),
        (make(pid=101), "name"),
        (make(heartbeat_ns=NOW + 2 * SECOND), "future"),
        (make(heartbeat_ns=2**64 - 1), "future"),
        (make()[:-1], "size"),
        (make() + b"x", "size"),
        (b"", "size"),
    ],
)
def test_refused(tmp_path, page, reason):
    lay(tmp_path, page)
    assert reasons(tmp_path) == {reason: 1}


def test_what_is_not_a_plain_file_is_refused_without_blocking(tmp_path):
    stats = tmp_path / "stats"
    stats.mkdir()
    target = tmp_path / "elsewhere"
    target.write_bytes(make())
    (stats / f"100-{NOW - SECOND}.page").symlink_to(target)
    os.mkfifo(stats / "101-1.page")
    (stats / "102-1.page").mkdir()
    os.link(target, stats / "103-1.page")
    (stats / "nonsense").write_bytes(b"")
    (stats / ".104-1.page").write_bytes(b"being made")
    assert reasons(stats) == {"type": 3, "links": 1, "name": 1}
    assert stat.S_ISFIFO((stats / "101-1.page").stat().st_mode)  # nothing was removed


def test_no_directory_is_no_pages(tmp_path):
    assert reasons(tmp_path / "missing") == {}


@given(
    damage=st.lists(
        st.tuples(st.integers(0, sl.PAGE_SIZE - 1), st.binary(min_size=1, max_size=64)), max_size=30
    )
)
def test_any_damage_is_refused_or_decoded(tmp_path_factory, damage):
    page = bytearray(make(events=[{}] * 40))
    for at, data in damage:
        page[at : at + len(data)] = data
    directory = tmp_path_factory.mktemp("stats")
    lay(directory, bytes(page[: sl.PAGE_SIZE]))
    reader = StatsDirectory(directory, seen=lambda *_: True)
    totals = JobTotals(["rail0", "rail1"])
    processes = reader.scan(NOW)
    assert len(processes) + sum(reader.refused.values()) == 1
    totals.update(processes, NOW)
    for process in processes:
        batch = reader.new_events(process)
        assert all(e.local_rail is None or e.local_rail < 32 for e in batch.events)
        assert [e.index for e in batch.events] == sorted({e.index for e in batch.events})
    for netdev in ("rail0", "rail1"):
        assert 0 <= totals.rail(netdev).tx_bytes <= MAX_STEP


@given(page=st.binary(max_size=sl.EVENTS_AT + 100))
def test_any_bytes_parse_or_raise(page):
    try:
        sp.parse(page)
    except sp.StatsPageError as error:
        assert error.reason in {"short", "magic", "version", "size", "torn", "count", "netdev"}  # noqa: PT017


def test_a_page_being_written_is_read_whole(tmp_path):
    """A writer that never stops: every copy taken is one that was published."""
    path = lay(tmp_path, make())
    stop = threading.Event()
    offset = sl.offsets(sl.RAIL_FIELDS)["tx_bytes"]

    def write():
        with path.open("r+b", buffering=0) as file:
            number, seq = 0, 2
            while not stop.is_set():
                number += 1
                for at, value in (
                    (8, seq + 1),
                    (sl.RAILS_AT + offset, number),
                    (sl.RAILS_AT + sl.RAIL_SIZE + offset, number),
                    (8, seq + 2),
                ):
                    file.seek(at)
                    file.write(value.to_bytes(8, "little"))
                seq += 2
                if number % 3 == 0:
                    time.sleep(0.0002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with PageFile(path) as file:
            copies, deadline = 0, time.monotonic() + 60
            while copies < 200:
                assert time.monotonic() < deadline, f"{copies} copies"
                try:
                    rails = file.page().rails
                except sp.StatsPageError as error:
                    assert error.reason == "torn"  # noqa: PT017
                    continue
                copies += 1
                assert rails[0].tx_bytes == rails[1].tx_bytes
    finally:
        stop.set()
        thread.join()


def test_events_since_an_index_and_overwritten_ones(tmp_path):
    names = [{"detail": i, "time_ns": i} for i in range(600)]
    path = lay(tmp_path, make(events=names[:10]))
    reader = StatsDirectory(tmp_path, seen=lambda *_: True)
    (process,) = reader.scan(NOW)
    batch = reader.new_events(process)
    assert [e.detail for e in batch.events] == list(range(10))
    assert reader.new_events(process) == sp.EventBatch((), 10)
    path.write_bytes(make(events=names))
    batch = reader.new_events(process)
    assert batch.lost == 600 - 512 - 10
    assert [e.detail for e in batch.events] == list(range(88, 600))
    path.write_bytes(make(events=names[:5]))
    assert reader.new_events(process) == sp.EventBatch((), 600)
    assert reader.refused == {"events": 1}


def test_an_event_not_written_yet_is_waited_for_and_a_bad_one_skipped(tmp_path):
    path = lay(tmp_path, make(events=[{}, {"kind": 77}, {"local_rail": 9}, {}, {"index": 0}, {}]))
    reader = StatsDirectory(tmp_path, seen=lambda *_: True)
    (process,) = reader.scan(NOW)
    batch = reader.new_events(process)
    assert [e.index for e in batch.events] == [0, 3]
    assert (batch.lost, batch.next_index) == (2, 4)
    path.write_bytes(make(events=[{}] * 6))
    assert [e.index for e in reader.new_events(process).events] == [4, 5]


def test_a_claimed_event_count_beyond_reason_costs_nothing(tmp_path):
    lay(tmp_path, make(event_count=2**64 - 1))
    reader = StatsDirectory(tmp_path, seen=lambda *_: True)
    (process,) = reader.scan(NOW)
    # Counting through them one by one would outlast the test's timeout by far.
    assert reader.new_events(process).events == ()


def test_alive():
    assert alive(NOW, NOW, process_seen=False)  # another pid namespace
    assert alive(NOW, NOW - STALE_NS - 1, process_seen=True)  # stopped
    assert not alive(NOW, NOW - STALE_NS - 1, process_seen=False)
    assert not alive(NOW, NOW - FORGOTTEN_NS - 1, process_seen=True)


def test_process_seen_tells_a_reused_pid():
    me = os.getpid()
    assert process_seen(me, os.getuid(), time.monotonic_ns())
    assert not process_seen(me, os.getuid(), 1)  # that process began before this one was born
    assert not process_seen(me, os.getuid() + 12345, time.monotonic_ns()) or os.getuid() == 0
    assert not process_seen(2**22 + 1, 0, time.monotonic_ns())
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline = time.monotonic() + 60
    while "Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not process_seen(child, os.getuid(), time.monotonic_ns())  # a zombie
    os.waitpid(child, 0)


def test_a_process_that_ended_is_reported_once_in_a_while(tmp_path):
    lay(tmp_path, make(heartbeat_ns=NOW - STALE_NS - 1))
    reader = StatsDirectory(tmp_path, seen=lambda *_: False)
    (process,) = reader.scan(NOW)
    assert not process.alive
    assert reader.scan(NOW + 1) == []
    assert len(reader.scan(NOW + ENDED_RECHECK_NS)) == 1


def process(page, uid=1000, alive=True):
    return ProcessPage(Path("x"), uid, sp.parse(page), alive)


def test_totals_go_on_when_a_process_ends_and_another_begins():
    totals = JobTotals(["rail0"])
    first = {"netdev": "rail0", "tx_bytes": 100, "stall_ns": 5 * 10**8, "in_flight_bytes": 7}
    totals.update([process(make(rails=(first,), errors=2))], NOW)
    assert totals.rail("rail0").tx_bytes == 100
    assert totals.rail("rail0").stall_s == 0.5
    assert totals.rail("rail0").in_flight_bytes == 7
    assert (totals.plugin().processes, totals.plugin().errors) == (1, 2)
    totals.update([], NOW + SECOND)  # the page is gone
    assert totals.rail("rail0").tx_bytes == 100
    assert totals.rail("rail0").in_flight_bytes == 0
    assert (totals.plugin().processes, totals.plugin().errors) == (0, 2)
    second = {"netdev": "rail0", "tx_bytes": 30}
    totals.update([process(make(start_ns=NOW, rails=(second,)))], NOW + 2 * SECOND)
    assert totals.rail("rail0").tx_bytes == 130
    assert totals.rail("rail7").tx_bytes == 0


def test_rails_by_names_that_no_link_has_are_told():
    """A container may call its interfaces otherwise: nothing of them is counted or steered."""
    totals = JobTotals(["rail0", "rail1"])
    pages = [({"netdev": "rail0"}, {"netdev": "net1"}), ({"netdev": "net1"}, {"netdev": "net2"})]
    running = [process(make(start_ns=at, rails=rails)) for at, rails in enumerate(pages)]
    totals.update(running, NOW)
    assert totals.plugin().foreign_rails == 3
    totals.configure(["rail0", "net1", "net2"])
    totals.update(running, NOW + SECOND)
    assert totals.plugin().foreign_rails == 0
    totals.configure(["rail0"])
    totals.update([running[0], process(make(rails=pages[1]), alive=False)], NOW + 2 * SECOND)
    assert totals.plugin().foreign_rails == 1, "what has ended is no matter any more"


def test_an_ended_page_read_again_is_not_counted_again():
    totals = JobTotals(["rail0"])
    page = make(rails=({"netdev": "rail0", "tx_bytes": 100},))
    for step in range(12):
        totals.update([process(page, alive=False)] if step % 2 else [], NOW + step * 10 * SECOND)
    assert totals.rail("rail0").tx_bytes == 100


def test_totals_go_on_after_the_daemons_restart():
    page = make(rails=({"netdev": "rail0", "tx_bytes": 100},), errors=1)
    before = JobTotals(["rail0"])
    before.update([process(page)], NOW)
    after = JobTotals(["rail0", "rail1"])
    after.restore(before.to_state())
    after.update([process(page)], NOW + SECOND)
    assert after.rail("rail0") == before.rail("rail0")
    assert after.plugin().errors == 1
    for bad in ({}, {"rails": 3}, {"rails": {}, "pages": {}, "last": [{"key": [1]}]}):
        with pytest.raises(ValueError, match=r"job totals|unpack"):
            after.restore(bad)
    assert after.rail("rail0").tx_bytes == 100


@given(
    looks=st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1), st.booleans()),
            max_size=4,
            unique_by=lambda t: t[0],
        ),
        max_size=12,
    )
)
def test_no_page_can_turn_a_total_back(looks):
    totals = JobTotals(["rail0"])
    last = 0
    for step, look in enumerate(looks):
        pages = [
            process(make(pid=pid, rails=({"netdev": "rail0", "tx_bytes": n},)), alive=lives)
            for pid, n, lives in look
        ]
        totals.update(pages, NOW + step * SECOND)
        assert totals.rail("rail0").tx_bytes >= last
        last = totals.rail("rail0").tx_bytes
        assert totals.rail("rail0").tx_bytes <= (step + 1) * 4 * MAX_STEP


def test_a_jump_is_refused_and_counted():
    totals = JobTotals(["rail0"])
    page = sp.parse(make())
    totals.update([ProcessPage(Path("x"), 0, page, alive=True)], NOW)
    spoiled = replace(page, rails=(replace(page.rails[0], rx_bytes=2**63),))
    totals.update([ProcessPage(Path("x"), 0, spoiled, alive=True)], NOW + 1)
    assert totals.rail("rail0").rx_bytes == 0
    assert totals.refused == 1
