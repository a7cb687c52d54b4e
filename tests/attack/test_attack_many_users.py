"""One user with the uids of his user namespace (subuid(5)) takes what there is for many users."""

import os
from dataclasses import replace

import pytest
from stats_page_files import NOW, SECOND, lay, make

from fabricd.jobs.owners import BLOCK, Owners
from fabricd.jobs.stats_pages import Jobs
from telemetry.statsdir import UID_PAGES, StatsDirectory

FIRST = 100_000
OWNERS = Owners(subordinate=(range(FIRST, FIRST + BLOCK),))
EVENTS = [{"kind": 1, "time_ns": NOW - 5} for _ in range(250)]


def test_a_block_is_one_user_and_a_kubelet_has_many():
    owners = Owners(subordinate=(range(FIRST, FIRST + 3 * BLOCK),))
    found = {owners.user_of(FIRST + number) for number in range(0, 3 * BLOCK, 512)}
    assert found == {FIRST, FIRST + BLOCK, FIRST + 2 * BLOCK}
    assert [owners.user_of(uid) for uid in (0, 1000, FIRST - 1, FIRST + 3 * BLOCK)] == [
        0, 1000, FIRST - 1, FIRST + 3 * BLOCK,
    ]  # fmt: skip


async def test_his_pages_are_no_more_rows_of_the_timeline_than_one_users(tmp_path, monkeypatch):
    """Each of his uids had a burst and a rate of its own: 200 rows a second, for ever."""
    jobs = Jobs(tmp_path, ["rail0"], NOW - SECOND, owners=OWNERS)
    for pid in range(1, 41):
        page = make(pid=pid, heartbeat_ns=NOW, events=EVENTS, job=b"his" if pid > 1 else b"hers")
        lay(tmp_path, page, pid)
    scan = jobs._directory.scan

    def owned(*args):
        return [
            replace(page, uid=1000 if page.page.pid == 1 else FIRST + page.page.pid)
            for page in scan(*args)
        ]

    monkeypatch.setattr(jobs._directory, "scan", owned)
    told = []
    for second in range(5):
        told += await jobs.scan(settled=True, now=NOW + second)
    hers = [row for row in told if row.data.get("job") == "hers"]
    assert len(hers) >= 100, "half of a scan is hers"
    assert set(jobs._budget._buckets) == {1000, FIRST}


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users")
def test_his_pages_leave_room_for_others(tmp_path):
    """With 8 of his uids he had all pages that there may be."""
    directory = StatsDirectory(tmp_path, user_of=OWNERS.user_of, seen=lambda *_: False)
    for pid in range(1, 2 * UID_PAGES + 1):
        path = lay(tmp_path, make(pid=pid, heartbeat_ns=1), pid)
        os.chown(path, FIRST + pid % 64, -1)
    assert len(directory.scan(NOW)) == UID_PAGES
    lay(tmp_path, make(pid=99_999, heartbeat_ns=1), 99_999)
    assert 99_999 in {one.page.pid for one in directory.scan(NOW)}
