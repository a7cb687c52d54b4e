"""Rows of stats pages have a rate for each owner; what is left out is told, with the owner."""

from dataclasses import replace

import pytest
from stats_page_files import NOW, SECOND, lay, make

from fabricd.jobs import event_budget
from fabricd.jobs.event_budget import BURST, PER_S, EventBudget, LeftOut
from fabricd.jobs.stats_pages import Jobs
from fabricd.timeline.levels import level
from telemetry.events import EventKind


def grants(budget, uid, seconds, wanted=200):
    return sum(
        budget.take(uid, wanted, wanted, second * SECOND) for second in range(1, seconds + 1)
    )


def test_a_flood_is_a_burst_and_then_a_rate():
    budget = EventBudget()
    assert grants(budget, 1001, 1000) == pytest.approx(BURST + 999 * PER_S, abs=5)


def test_a_flood_of_one_owner_costs_another_nothing():
    budget = EventBudget()
    grants(budget, 1001, 100)
    assert budget.take(1002, 150, 200, 100 * SECOND) == 150


def test_a_quiet_owner_has_its_burst_again():
    budget = EventBudget()
    grants(budget, 1001, 100)
    later = 100 * SECOND + int(BURST / PER_S) * SECOND
    assert budget.take(1001, 3000, 3000, later) == BURST


def test_what_was_left_out_is_told_once_a_minute_with_its_owner():
    budget = EventBudget()
    assert budget.left_out(0) is None
    budget.take(1001, 500, 100, 0)
    budget.take(1002, 7, 5, 0)
    assert budget.left_out(0) == LeftOut(402, 1001, 400)
    budget.take(1002, 7, 5, SECOND)
    assert budget.left_out(59 * SECOND) is None
    assert budget.left_out(60 * SECOND) == LeftOut(2, 1002, 2)


def test_owners_without_end_are_no_table_without_end(monkeypatch):
    monkeypatch.setattr(event_budget, "MOST_OWNERS", 10)
    budget = EventBudget()
    for uid in range(100):
        budget.take(uid, 1, 1, uid)
    assert len(budget._buckets) == 10


async def test_pages_of_two_owners_share_a_scan(tmp_path, monkeypatch):
    """A page that shows hundreds of events a second beside one with a failover."""
    jobs = Jobs(tmp_path, ["rail0"], NOW - SECOND)
    many = [{"kind": 1, "time_ns": NOW - 5} for _ in range(250)]
    few = [{"kind": 1, "time_ns": NOW - 5}] * 90
    uids = {}
    for pid, events in ((7, many), (8, few)):
        path = lay(
            tmp_path, make(pid=pid, heartbeat_ns=NOW, events=events, job=f"j{pid}".encode()), pid
        )
        uids[path.name] = 1000 + pid
    scan = jobs._directory.scan

    def owned(*args):
        return [replace(page, uid=uids[page.name]) for page in scan(*args)]

    monkeypatch.setattr(jobs._directory, "scan", owned)
    rows = await jobs.scan(settled=True, now=NOW)
    by_job = [row.data.get("job") for row in rows]
    assert by_job.count("j8") == 90
    assert by_job.count("j7") == 100
    assert rows[-1].kind is EventKind.PLUGIN
    assert level(rows[-1]) == "warning"
    assert rows[-1].data["uid"] == 1007
    assert rows[-1].reason == (
        f"left out: {rows[-1].data['events']} events of stats pages, most of uid 1007"
    )
    assert jobs.suppressed == rows[-1].data["events"]
