"""The ledger's records of jobs, and a host whose jobs fill it."""

import pytest

from compute.board import JobBoard
from compute.decide.effects import FenceIssued, JobState, Order, Record
from compute.event_budget import BURST, RATE
from compute.record_budget import RecordBudget
from telemetry.messages.documents import ComputeJob, ComputeOrder, Fence

SIZE = 1000


def state(job, *hosts):
    return JobState(job, ComputeJob(job=job, phase="running", hosts=list(hosts)))


def record(job, kind="phase", **fields):
    return Record(kind, {"job": job, "text": "x" * SIZE, **fields})


@pytest.fixture
def board():
    known = JobBoard()
    for job, *hosts in (("alone", "h9"), ("shared", "h1", "h9")):
        known.update(job, state(job, *hosts).state)
    return known


@pytest.fixture
def flooded(board):
    """h9 has spent all that it had."""
    budget = RecordBudget()
    kept = 0
    while budget.kept([record("alone")], board, 0.0, full=False):
        kept += 1
    assert BURST / (SIZE + 100) <= kept <= BURST / SIZE
    return budget


def test_a_host_that_floods_is_cut_and_counted(board, flooded):
    flooded.hosts.take_left_out(-1e9)
    assert flooded.kept([record("alone")], board, 0.0, full=False) == []
    assert flooded.hosts.take_left_out(1e9) == {"h9": 1}


def test_in_a_day_it_fills_no_disk(board):
    budget = RecordBudget()
    kept = sum(
        len(budget.kept([record("alone")] * 3, board, float(second), full=False))
        for second in range(86_400)
    )
    assert kept * SIZE <= BURST + 86_400 * RATE


def test_a_job_with_one_host_that_has_not_flooded_is_recorded(board, flooded):
    assert len(flooded.kept([record("shared")], board, 0.0, full=False)) == 1
    assert len(flooded.kept([record("shared")], board, 0.0, full=True)) == 1


def test_the_hosts_of_a_new_job_are_those_of_its_state(board, flooded):
    new = [state("new", "h9"), record("new")]
    assert flooded.kept(new, board, 0.0, full=False) == new[:1]
    new = [state("other", "h2"), record("other")]
    assert flooded.kept(new, board, 0.0, full=False) == new
    assert flooded.kept([record("unknown", host="h9")], board, 0.0, full=False) == []


def test_only_records_are_left_out_and_no_fence(board, flooded):
    effects = [
        FenceIssued(Fence(id="f", job="alone", host="h9", incarnation="i")), state("alone", "h9"),
        Order("h9", ComputeOrder()), record("alone", "fence"), record("alone", "job_gone"),
    ]  # fmt: skip
    assert flooded.kept(effects, board, 0.0, full=True) == effects[:-1]


def test_on_a_full_disk_jobs_of_one_host_wait(board):
    budget = RecordBudget()
    assert budget.kept([record("alone"), record("shared")], board, 0.0, full=True) == [
        record("shared")
    ]
    assert budget.hosts.take_left_out(0.0) == {"h9": 1}


def test_a_record_of_many_ranks_is_not_too_large(board):
    long = Record("recovery", {"job": "shared", "ranks": list(range(20_000))})
    assert RecordBudget().kept([long], board, 0.0, full=False) == [long]
