"""Stats pages of ended processes are removed: not too early, and nothing else ever."""

import asyncio
import os
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from stats_page_files import NOW, SECOND, lay, make

from fabricd.jobs.stats_pages import Jobs
from telemetry import statspage as sp
from telemetry.endedpages import GRACE_NS, UNSEEN_GRACE_NS, look, may_remove
from telemetry.statsdir import FORGOTTEN_NS, ProcessPage, StatsDirectory

PAGE = ProcessPage(Path("100-1.page"), 1000, sp.parse(make()), alive=True, seen=True)
GONE = replace(PAGE, alive=False, seen=False)


def looks(*steps):
    """The last look of (process, next index, now) triples."""
    seen = None
    for process, next_index, now in steps:
        seen = look(seen, process, next_index, now)
    return seen


def test_grace_counts_from_when_it_was_found_gone():
    seen = looks((PAGE, 5, NOW), (GONE, 5, NOW + 10), (GONE, 5, NOW + 20))
    assert seen.since_ns == NOW + 10
    assert not may_remove(seen, NOW + 10 + GRACE_NS - 1, settled=True)
    assert may_remove(seen, NOW + 10 + GRACE_NS, settled=True)
    assert not may_remove(seen, NOW + 10 + GRACE_NS, settled=False)


@pytest.mark.parametrize(
    "last",
    [
        (GONE, 6),
        (replace(GONE, page=replace(GONE.page, heartbeat_ns=NOW + 1)), 5),
        (replace(GONE, seen=True), 5),
        (replace(GONE, alive=True), 5),
        (PAGE, 5),
    ],
    ids=["an event more", "a beat more", "there again", "beats again", "back"],
)
def test_whatever_changes_begins_the_grace_anew(last):
    seen = looks((PAGE, 5, NOW), (GONE, 5, NOW), (*last, NOW + GRACE_NS))
    assert not may_remove(seen, NOW + GRACE_NS, settled=True)
    again = looks((PAGE, 5, NOW), (GONE, 5, NOW), (*last, NOW + GRACE_NS), (GONE, 5, NOW + 10**12))
    assert not may_remove(again, NOW + 10**12 + GRACE_NS - 1, settled=True)


def test_a_stopped_process_is_never_gone():
    stopped = replace(PAGE, alive=False, seen=True)
    seen = looks((stopped, 5, NOW), (stopped, 5, NOW + 10 * UNSEEN_GRACE_NS))
    assert not may_remove(seen, NOW + 10 * UNSEEN_GRACE_NS, settled=True)


def test_a_process_never_seen_here_may_be_in_another_pid_namespace():
    beats = replace(PAGE, seen=False)
    seen = looks((beats, 5, NOW), (GONE, 5, NOW), (GONE, 5, NOW + GRACE_NS))
    assert not may_remove(seen, NOW + GRACE_NS, settled=True)
    assert may_remove(seen, NOW + UNSEEN_GRACE_NS, settled=True)


def test_only_the_very_file_that_was_read_is_removed(tmp_path):
    path = lay(tmp_path, make())
    reader = StatsDirectory(tmp_path, seen=lambda *_: False)
    (process,) = reader.scan(NOW)
    other = tmp_path / "elsewhere"
    other.write_bytes(make())
    path.unlink()
    assert not reader.remove(process), "gone already"
    path.symlink_to(other)
    assert not reader.remove(process)
    path.unlink()
    path.mkdir()
    assert not reader.remove(process)
    path.rmdir()
    other.rename(path)
    assert not reader.remove(process), "another file by that name"
    (again,) = StatsDirectory(tmp_path, seen=lambda *_: False).scan(NOW)
    assert not reader.remove(replace(again, uid=again.uid + 1)), "another owner by now"
    assert reader.remove(again)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_became_a_link_is_not_followed(tmp_path):
    stats = tmp_path / "stats"
    path = lay(stats, make())
    reader = StatsDirectory(stats, seen=lambda *_: False)
    (process,) = reader.scan(NOW)
    stats.rename(tmp_path / "real")
    stats.symlink_to(tmp_path / "real")
    assert not reader.remove(process)
    assert (tmp_path / "real" / path.name).exists()


class Scans:
    """A daemon's scans of a directory in virtual time, with the processes that there are."""

    def __init__(self, directory, *pids):
        self.jobs = Jobs(directory, ["rail0"], NOW)
        self.pids = set(pids)
        self.jobs._directory = StatsDirectory(directory, seen=lambda pid, *_: pid in self.pids)
        self.now = NOW
        self.settled = True
        self.events = []

    async def run(self, duration_ns, step_ns=5 * SECOND):
        for _ in range(duration_ns // step_ns):
            self.now += step_ns
            self.events += await self.jobs.scan(settled=self.settled, now=self.now)


async def test_a_reload_while_pages_are_read_tells_no_event_twice(tmp_path):
    rail = {"netdev": "rail0", "tx_bytes": 100}
    lay(tmp_path, make(rails=(rail,), events=[{"time_ns": NOW + 1}, {"time_ns": NOW + 2}]))
    scans = Scans(tmp_path, 100)
    read = scans.jobs._read

    def read_and_reload(now):
        found = read(now)
        scans.jobs.configure(["rail0", "rail1"])  # in the loop, before the thread's answer is
        return found

    scans.jobs._read = read_and_reload
    await scans.run(5 * SECOND)
    scans.jobs._read = read
    scans.jobs.configure(["rail0"])
    await scans.run(15 * SECOND)
    assert len(scans.events) == 2
    assert scans.jobs.totals.rail("rail0").tx_bytes == 100


async def test_page_of_a_killed_process_goes_after_its_events_were_taken(tmp_path):
    rail = {"netdev": "rail0", "tx_bytes": 100}
    lay(tmp_path, make(rails=(rail,), events=[{"time_ns": NOW + 1}, {"time_ns": NOW + 2}]))
    scans = Scans(tmp_path, 100)
    await scans.run(5 * SECOND)
    rail["tx_bytes"] = 150
    events = [{"time_ns": NOW + 1}, {"time_ns": NOW + 2}, {"time_ns": NOW + 6 * SECOND}]
    page = make(rails=(rail,), events=events, heartbeat_ns=NOW + 6 * SECOND)
    path = lay(tmp_path, page)
    scans.pids.clear()
    ended = []
    for _ in range(6):
        await scans.run(5 * SECOND)
        ended.append(scans.jobs.ended)
    assert sum(ended) == 1, "once it must be stored"
    assert path.exists()
    scans.settled = False
    await scans.run(300 * SECOND)
    assert path.exists(), "what was read is not stored"
    scans.settled = True
    await scans.run(15 * SECOND)
    assert list(tmp_path.iterdir()) == []
    assert scans.jobs.removed == 1
    assert len(scans.events) == 3
    await scans.run(300 * SECOND)
    assert scans.jobs.totals.rail("rail0").tx_bytes == 150, "its share of the totals stays"
    assert not scans.jobs.ended


async def test_a_process_that_was_killed_while_it_wrote_an_event_leaves_nothing(tmp_path):
    lay(tmp_path, make(events=[{"time_ns": NOW + 1}, {"index": 0}], heartbeat_ns=NOW))
    scans = Scans(tmp_path, 100)
    await scans.run(5 * SECOND)
    scans.pids.clear()
    await scans.run(120 * SECOND)
    assert list(tmp_path.iterdir()) == []
    assert len(scans.events) == 1


async def test_nothing_else_is_ever_removed(tmp_path):
    stats, target = tmp_path / "stats", tmp_path / "target"
    lay(stats, make(heartbeat_ns=NOW), pid=100)  # alive but stopped
    target.write_bytes(make(pid=101))
    os.link(target, stats / f"101-{NOW - SECOND}.page")
    lay(stats, make(pid=7), pid=102)  # not whose name it bears
    lay(stats, make(pid=103)[:-1], pid=103)
    (stats / f"104-{NOW - SECOND}.page").symlink_to(target)
    os.mkfifo(stats / "105-1.page")
    (stats / "106-1.page").mkdir()
    (stats / "notes").write_text("mine")
    (stats / ".107-1.page").write_bytes(make())
    before = sorted(p.name for p in stats.iterdir())
    scans = Scans(stats, 100)
    await scans.run(2 * UNSEEN_GRACE_NS + FORGOTTEN_NS, step_ns=60 * SECOND)
    assert sorted(p.name for p in stats.iterdir()) == before
    assert target.read_bytes() == make(pid=101)
    assert stat.S_ISFIFO((stats / "105-1.page").lstat().st_mode)
    assert scans.jobs.removed == 0


async def test_a_process_that_was_killed_while_it_wrote_its_page_is_read_to_the_end(tmp_path):
    rail = {"netdev": "rail0", "tx_bytes": 100}
    path = lay(tmp_path, make(rails=(rail,), seq=3, heartbeat_ns=NOW))
    scans = Scans(tmp_path, 100)
    await scans.run(4 * SECOND, step_ns=SECOND)
    assert scans.jobs.refused == 2, "looked at every 2 s: it may still be writing"
    scans.pids.clear()
    await scans.run(SECOND, step_ns=SECOND)
    assert scans.jobs.refused == 3, "it may be in another pid namespace: it beat 5 s ago"
    await scans.run(SECOND, step_ns=SECOND)
    await scans.run(SECOND, step_ns=SECOND)
    assert scans.jobs.refused == 3
    assert scans.jobs.totals.rail("rail0").tx_bytes == 100
    await scans.run(UNSEEN_GRACE_NS + 60 * SECOND, step_ns=30 * SECOND)
    assert not path.exists(), "never read while it was seen: the long grace"


def test_a_real_process_killed_for_good(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            start = time.monotonic_ns()
            page = make(pid=child.pid, start_ns=start, heartbeat_ns=start)
            path = lay(tmp_path, page, pid=child.pid, start_ns=start)
            jobs = Jobs(tmp_path, [], start)
            asyncio.run(jobs.scan(settled=True))
            for step in range(10):
                asyncio.run(jobs.scan(settled=True, now=start + step * GRACE_NS))
            assert path.exists()
        finally:
            child.kill()
    for step in range(10, 20):
        asyncio.run(jobs.scan(settled=True, now=start + step * GRACE_NS))
    assert not path.exists()
