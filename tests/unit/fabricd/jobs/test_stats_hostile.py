"""A stats directory full of other users' files: jobs' pages are read, or the scan says so."""

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest
from control_sockets import Turns, served
from stats_page_files import NOW, SECOND, lay, make
from typer.testing import CliRunner

import fabricd.cli
from fabricd.cli import operator_commands
from fabricd.control.server import encode, encode_in_turns
from fabricd.jobs.stats_pages import Jobs
from fabricd.process import blocking_call
from telemetry import statsdir
from telemetry.statsdir import StatsDirectory

RAIL = {"netdev": "rail0", "tx_bytes": 10**9}
JOB = (make(pid=7, rails=(RAIL,), job=b"real"), 7)


def seen(*_):
    return True


def real(pages):
    return [process.page.job for process in pages if process.page.job == "real"]


def odd(directory, count):
    """Pages whose writer never rests."""
    for number in range(count):
        lay(directory, make(seq=3, pid=1000 + number, heartbeat_ns=NOW), 1000 + number)


def empty(directory, count):
    directory.mkdir(exist_ok=True)
    for number in range(count):
        (directory / f"{2000 + number}-1.page").touch()


class Ticks:
    """A clock that goes on by a step each time that it is read."""

    def __init__(self, step_s):
        self.now, self.step = 0.0, step_s

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.mark.patient
@pytest.mark.parametrize("plant", [odd, empty])
def test_a_job_among_4096_hostile_pages_is_seen_with_the_daemons_budget(tmp_path, plant):
    plant(tmp_path, 4096)
    lay(tmp_path, *JOB)
    reader = StatsDirectory(tmp_path, seen=seen)
    for scan in range(200):  # However slow the machine: each scan goes on where the last stopped.
        pages = reader.scan(NOW + scan, budget_s=0.15)
        if real(pages):
            break
    assert real(pages), reader.report
    for scan in range(5):
        assert real(reader.scan(NOW + SECOND + scan, budget_s=0.0)), "once known it is read first"


def test_a_torn_page_is_looked_at_once(tmp_path, monkeypatch):
    odd(tmp_path, 1)
    reads = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: reads.append(size) or pread(fd, size, at))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits for the writer"))
    reader = StatsDirectory(tmp_path, seen=seen)
    assert reader.scan(NOW) == []
    assert reads == [16, 65536], "its sequence, then who wrote it"
    assert reader.report.partial == "1 pages were being written"


def test_a_known_page_that_is_being_written_goes_by_its_last_look(tmp_path):
    path = lay(tmp_path, *JOB)
    reader = StatsDirectory(tmp_path, seen=seen)
    assert real(reader.scan(NOW))
    assert reader.report.partial == ""
    path.write_bytes(make(pid=7, seq=5, rails=(RAIL,), job=b"real"))
    (page,) = reader.scan(NOW + SECOND)
    assert page.page.rails[0].tx_bytes == 10**9
    assert reader.report.partial == "1 pages were being written"
    more = RAIL | {"tx_bytes": 2 * 10**9}
    path.write_bytes(make(pid=7, rails=(more,), job=b"real"))
    (page,) = reader.scan(NOW + 2 * SECOND)
    assert page.page.rails[0].tx_bytes == 2 * 10**9
    assert reader.report.partial == ""


def test_a_scan_ends_in_its_time_and_the_next_goes_on(tmp_path):
    for number in range(1000):
        (tmp_path / f"x{number}").touch()
    lay(tmp_path, *JOB)
    reader = StatsDirectory(tmp_path, seen=seen, clock=Ticks(0.01))
    scans, found = 0, []
    while not found:
        found = reader.scan(NOW, budget_s=0.1)
        scans += 1
        assert scans < 100
        if not found:
            assert "not all names were listed in time" in reader.report.partial
    reader = StatsDirectory(tmp_path, seen=seen)
    assert real(reader.scan(NOW, budget_s=60))
    assert reader.report == statsdir.ScanReport(1001, 1, "")


def test_400000_other_names_are_counted_and_take_no_turn_of_the_pages(tmp_path, monkeypatch):
    class Entry:
        def __init__(self, number):
            self.name = f"x{number}" if number else f"7-{NOW - SECOND}.page"

        def is_dir(self, **_):
            return False

    class Many:
        def __init__(self, _):
            pass

        def __enter__(self):
            return (Entry(number) for number in range(400_000, -1, -1))

        def __exit__(self, *_):
            pass

    lay(tmp_path, *JOB)
    monkeypatch.setattr(os, "scandir", Many)
    reader = StatsDirectory(tmp_path, seen=seen)
    for _ in range(2000):
        # Time may be up at the last entry: they are summed up in the scan after it.
        if real(reader.scan(NOW, budget_s=0.05)) and reader.refused["name"] >= 400_000:
            break
    assert reader.refused["name"] >= 400_000
    assert reader.report.entries == 400_001
    assert reader.report.pages == 1


def test_one_user_has_a_quota_and_the_rest_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(statsdir, "UID_ALIVE", 3)
    for number in range(5):
        lay(tmp_path, make(pid=number + 1), number + 1)
    reader = StatsDirectory(tmp_path, seen=seen)
    assert len(reader.scan(NOW)) == 3
    assert reader.report == statsdir.ScanReport(5, 3, "2 pages over their owner's quota")
    assert len(reader.scan(NOW + 1)) == 3
    assert reader.report.partial == "2 pages over their owner's quota", "still so"
    for number in (1, 2):
        (tmp_path / f"{number}-{NOW - SECOND}.page").unlink()
    assert len(reader.scan(NOW + 20 * SECOND)) == 3
    assert reader.report == statsdir.ScanReport(3, 3, "")


def test_owners_take_turns(tmp_path, monkeypatch):
    for number in range(6):
        lay(tmp_path, make(pid=number + 1), number + 1)
    reader = StatsDirectory(tmp_path, seen=seen)
    reader.scan(NOW)
    uids = {name: 1 if name.startswith("6-") else 2 for name in reader._pages}
    reader._pages = {
        name: statsdir.replace(page, uid=uids[name]) for name, page in reader._pages.items()
    }
    assert f"6-{NOW - SECOND}.page" in reader._by_turns()[:2], (
        "one of six, and second at the latest"
    )


# -- the daemon's loop meanwhile


async def test_the_loop_is_not_kept_while_pages_are_added_up(tmp_path):
    """In steps of the loop, not of the clock: between two of them something else may run."""
    for number in range(100):
        rails = [{"netdev": f"rail{r}", "tx_bytes": number} for r in range(8)]
        lay(tmp_path, make(pid=number + 1, rails=rails), number + 1)
    jobs = Jobs(tmp_path, [f"rail{r}" for r in range(8)], NOW)
    jobs._directory = StatsDirectory(tmp_path, seen=seen)
    added = []
    steps = jobs.totals.steps

    def counted(pages, now):
        for step in steps(pages, now):
            added.append(turns.count)
            yield step

    jobs.totals.steps = counted
    async with Turns() as turns:
        while jobs.report.pages != 100:
            added.clear()
            await jobs.scan(settled=True, now=NOW)
    most = max(added.count(turn) for turn in set(added))
    assert most <= 16, "pages added up without a turn for others"


async def test_a_reload_while_pages_are_added_up_does_no_harm(tmp_path):
    """Between two turns of the loop a rail more is counted, and pages left have it."""
    for number in range(40):
        rails = [{"netdev": name, "tx_bytes": 5} for name in ("rail0", "rail1")]
        lay(tmp_path, make(pid=number + 1, rails=rails), number + 1)
    jobs = Jobs(tmp_path, ["rail0"], NOW)
    jobs._directory = StatsDirectory(tmp_path, seen=seen)
    steps = jobs.totals.steps

    def reloaded(pages, now):
        for number, step in enumerate(steps(pages, now)):
            if number == 15:
                jobs.configure(["rail0", "rail1"])
            yield step

    jobs.totals.steps = reloaded
    while jobs.report.pages != 40 or jobs.report.partial:
        await jobs.scan(settled=True, now=NOW)
    assert jobs.totals.rail("rail0").tx_bytes == 200
    jobs.totals.steps = steps
    await jobs.scan(settled=True, now=NOW + 1)
    assert jobs.totals.rail("rail1").tx_bytes == 200, "each page's once, from the next look on"


async def test_a_scan_that_waits_for_its_turn_takes_the_time_then(tmp_path, monkeypatch):
    """Pages that beat meanwhile are not of the future, nor are their events."""
    clock = SimpleNamespace(now=NOW)
    fake = SimpleNamespace(
        monotonic_ns=lambda: clock.now, monotonic=time.monotonic, time_ns=time.time_ns
    )
    monkeypatch.setattr("fabricd.jobs.stats_pages.time", fake)
    jobs = Jobs(tmp_path, ["rail0"], NOW)
    jobs._directory = StatsDirectory(tmp_path, seen=seen)
    async with jobs._turn:
        scan = asyncio.create_task(jobs.scan(settled=True))
        await asyncio.sleep(0)
        clock.now += 20 * SECOND
        beat = clock.now - 1
        lay(tmp_path, make(rails=(RAIL,), heartbeat_ns=beat, events=[{"time_ns": beat}]))
    assert [event.mono_ns for event in await scan] == [beat]
    assert jobs.refused == 0


def test_a_scan_that_was_stopped_does_not_take_pages_for_the_futures(tmp_path):
    """The daemon or the disk stood still for 20 s in the middle of it."""
    lay(tmp_path, make(heartbeat_ns=NOW + 20 * SECOND))
    assert StatsDirectory(tmp_path, seen=seen).scan(NOW) == [], "of the future"
    reader = StatsDirectory(tmp_path, seen=seen, clock=Ticks(20))
    assert len(reader.scan(NOW)) == 1


async def test_one_thread_touches_the_directory_and_nothing_waits_for_one_that_hangs(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fabricd.jobs.stats_pages.LIMIT_S", 0.05)
    jobs = Jobs(tmp_path, ["rail0"], NOW)
    gate, threads = threading.Event(), set()
    scan = jobs._directory.scan

    def hangs(*arguments):
        threads.add(threading.current_thread().name)
        gate.wait(60)
        return scan(*arguments)

    jobs._directory.scan = hangs
    assert await jobs.scan(settled=True) == []
    assert jobs.report.partial == "the stats directory did not answer within 0.05 s"
    with pytest.raises(TimeoutError):
        await jobs.live()
    gate.set()
    async with asyncio.timeout(60):
        while jobs._blocking.busy:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    jobs._blocking.limit_s = 60
    await jobs.scan(settled=True)
    assert jobs.report.partial == ""
    assert (await jobs.live())["processes"] == []
    assert threads == {"stats"}


async def test_processes_are_encoded_by_and_by():
    document = {"ok": True, "data": {"time_ns": 1, "processes": [{"n": n} for n in range(50)],
                                     "left_out": 0}}  # fmt: skip
    async with Turns() as turns:
        line = await encode_in_turns(document)
    assert turns.count >= 10
    assert json.loads(line) == document
    for small in ({"ok": True, "data": {}}, {"ok": True, "data": {"processes": []}}, {"ok": False}):
        assert await encode_in_turns(small) == encode(small)


def test_an_executor_has_its_threads_from_the_start():
    before = threading.active_count()
    executor = blocking_call.started_executor(3)
    assert threading.active_count() == before + 3
    executor.shutdown()


# -- drain --wait


@contextlib.contextmanager
def daemon(tmp_path, answers):
    """A control socket on which a link can be drained; ``answers``: those of `jobs`, in turn.

    The last one is repeated.
    """
    waiting, last = iter(answers), None

    async def drain(_request, _caller):
        return {"left_s": None}

    async def jobs(_request, _caller):
        nonlocal last
        last = next(waiting, last)
        return last

    with served(tmp_path / "ctl.sock", {"drain": drain, "jobs": jobs}) as path:
        yield path


def answer(partial="", left_out=0, processes=()):
    return {"processes": list(processes), "left_out": left_out, "scan": {"partial": partial}}


QUIET = answer()
BUSY = (  # more bytes each time, without end
    answer(processes=[{"pid": 1, "start_ns": 1, "rails": [
        {"netdev": "rail1", "tx_bytes": n, "rx_bytes": 0, "in_flight_bytes": 0}]}])
    for n in itertools.count()
)  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "status", "says"),
    [
        ([QUIET], 0, "no job has moved a byte"),
        ([answer("1 pages were being written")] * 2 + [QUIET], 0, "no job has moved a byte"),
        ([answer("not all names were listed in time")], 1, "is not known: not all stats pages"),
        ([answer(left_out=3)], 1, "is not known: 3 processes more"),
        (BUSY, 1, "jobs still move bytes"),
    ],
    ids=["quiet", "written now and then", "partial", "left out", "busy"],
)
def test_drain_says_that_nothing_moves_only_when_all_was_seen(
    tmp_path, monkeypatch, answers, status, says
):
    monkeypatch.setattr(operator_commands, "QUIET_S", 0.3)
    patience = "60s" if status == 0 else "1s"
    with daemon(tmp_path, answers) as socket:
        done = CliRunner().invoke(
            fabricd.cli.app, ["drain", "rail1", "--wait", patience, "--socket", str(socket)]
        )
    text = " ".join((done.output + (done.stderr if done.stderr_bytes else "")).split())
    assert (done.exit_code, says in text) == (status, True), text
