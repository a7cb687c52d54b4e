"""What a host learns of its jobs: which fabric-compute counts, and rows that come once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.cli.training_commands import ranks_on_hosts, spans
from fabricd.escalate.job_views import MOST_EVIDENCE, JobViews, migration, moves, phase_row
from telemetry.events import EventKind
from telemetry.messages.documents import (
    ComputeJob,
    ComputeView,
    HostEvidence,
    RankSlowness,
    Recovery,
)

MOVE = Recovery(
    generation=3, proposal="p3", failure_class="host", outcome="recovered", reason="h2 is lost",
    ranks=[2], origins=["h2"], targets=["h4"], step=19, committed_ms=812.4,
)  # fmt: skip


def job(generation=2, phase="running", *, places=("h0", "h1", "h2"), reason="", name="gpt", **more):
    return ComputeJob(
        job=name, phase=phase, reason=reason, generation=generation, proposal=f"p{generation}",
        ranks={str(rank): f"{host} {host}.0" for rank, host in enumerate(places)},
        hosts=sorted({"h3", *places}), **more,
    )  # fmt: skip


def view(*jobs):
    return ComputeView(jobs=list(jobs))


def texts(rows):
    return [row.reason for row in rows]


def test_a_takeover_is_two_rows_whoever_says_it():
    views = JobViews()
    assert texts(views.update("c0", view(job()), 0)) == ["running: job gpt, generation 2"]
    assert views.update("c1", view(job()), 1) == []
    after = job(3, places=("h0", "h1", "h4"), reason="rank 2: h2 is lost")
    assert texts(views.update("c1", view(after), 2)) == [
        "running: job gpt, generation 3: rank 2: h2 is lost; rank 2 moved from h2 to h4"
    ]
    done = after.model_copy(update={"recoveries": [MOVE]})
    [row] = views.update("c0", view(done), 3)
    assert row.kind is EventKind.MIGRATION
    assert row.reason == (
        "recovered: rank 2 moved from h2 to h4, job gpt, generation 3 in 812 ms, 0 steps lost "
        "(host: h2 is lost)"
    )
    other = MOVE.model_copy(update={"committed_ms": 815.0})
    assert views.update("c1", view(after.model_copy(update={"recoveries": [other]})), 4) == []


def test_rows_of_an_earlier_daemon_are_not_written_again():
    first = JobViews()
    state = view(job(3, recoveries=[MOVE]))
    rows = first.update("c0", state, 0)
    assert [row.kind for row in rows] == [EventKind.GENERATION, EventKind.MIGRATION]
    second = JobViews()
    second.restore([{"kind": row.kind.value, "data": row.data} for row in rows])
    assert second.update("c0", state, 0) == []
    assert texts(second.update("c0", view(job(3, "held", reason="no spare")), 1)) == [
        "held: job gpt, generation 3: no spare"
    ]


@pytest.mark.parametrize(
    "data", [None, {}, {"id": 3, "job": "gpt"}, {"id": "x"}, {"id": "x", "job": None}]
)
def test_a_row_without_a_name_is_passed_over(data):
    views = JobViews()
    views.restore([{"kind": "migration", "data": data}, {"kind": "generation", "data": data}])
    assert len(views.update("c0", view(job(3, recoveries=[MOVE])), 0)) == 2


def test_of_two_computes_the_one_counts_that_is_there_and_knows_more():
    views = JobViews()
    views.update("c0", view(job(4)), 0)
    views.update("c1", view(job(3, "held", reason="no spare")), 0)
    assert views.jobs(0)[0]["generation"] == 4
    views.status("c0", online=False, now=1)
    [known] = views.jobs(2_000_000_001)
    assert (known["generation"], known["phase"], known["compute"]) == (3, "held", "c1")
    assert known["age_s"] == 2.0
    assert views.computes == {"c0": False, "c1": True}
    views.status("c0", online=True, now=3)
    assert views.jobs(3)[0]["generation"] == 4


def test_a_job_that_is_over_here_stays_known():
    views = JobViews()
    views.update("c0", view(job(2, "ended", reason="after step 40")), 0)
    assert views.update("c0", None, 1) == []
    [known] = views.jobs(1)
    assert (known["phase"], known["present"]) == ("ended", False)
    assert texts(views.update("c0", view(job(1)), 2)) == ["running: job gpt, generation 1"]


def test_of_what_two_computes_say_of_a_host_the_fence_counts():
    views = JobViews()
    suspected = HostEvidence(host="h2", lost=True, rule="lost: silent", reason="silent", fence="")
    fenced = suspected.model_copy(update={"fence": "gpt/h2/i"})
    for order in (("c0", fenced), ("c1", suspected)), (("c1", suspected), ("c0", fenced)):
        for compute, said in order:
            views.update(compute, view(job(evidence=[said])), 0)
        [row] = views.evidence("h2", 1)
        assert row["evidence"]["fence"] == "gpt/h2/i"
    views.update("c0", view(job(evidence=[])), 2)
    views.update("c1", view(job(evidence=[suspected])), 3)
    [row] = views.evidence("h2", 4)
    assert row["evidence"]["fence"] == ""


def test_evidence_outlives_what_is_said_and_is_bounded():
    views = JobViews()
    said = HostEvidence(host="h2", lost=True, rule="lost: …", reason="silent", fence="gpt/h2/i")
    views.update("c0", view(job(evidence=[said])), 0)
    [row] = views.evidence("h2", 0)
    assert (row["evidence"]["fence"], row["current"], row["ranks"]) == ("gpt/h2/i", True, [2])
    views.update("c0", None, 1)
    [row] = views.evidence("h2", 1)
    assert (row["evidence"]["fence"], row["current"]) == ("gpt/h2/i", False)
    assert views.evidence("h9", 1) == []
    for number in range(MOST_EVIDENCE + 10):
        other = said.model_copy(update={"host": f"x{number}"})
        views.update("c0", view(job(evidence=[other])), 2)
    assert len(views.hosts()) <= MOST_EVIDENCE + 4
    [row] = views.evidence("h2", 3)
    assert row["evidence"] is None


@pytest.mark.parametrize("phase", ["waiting", "proposed", "of another version"])
def test_phases_on_the_way_are_no_rows(phase):
    assert phase_row(None, job(phase=phase)) is None


def test_what_observe_mode_would_do_is_one_row_a_generation():
    views = JobViews()
    views.update("c0", view(job()), 0)
    for votes in (2, 3):
        would = job(reason=f"would fence h2: silent to {votes}")
        found = texts(views.update("c0", view(would), votes))
        assert found == (["running: job gpt, generation 2: " + would.reason] if votes == 2 else [])


def test_moves():
    assert moves([0, 1, 4], ["a", "a", "b"], ["a", "a", "c"]) == (
        "ranks 0, 1 were replaced on a, rank 4 moved from b to c"
    )
    many = [f"h{i}" for i in range(9)]
    assert moves(list(range(9)), many, many) == "9 ranks changed places"


def test_a_migration_reads_as_it_was_written():
    [_, row] = JobViews().update("c0", view(job(3, recoveries=[MOVE])), 0)
    told = migration({"wall_ns": 5, "data": row.data})
    assert (told["ranks"], told["from"], told["to"]) == ([2], ["h2"], ["h4"])
    assert (told["class"], told["outcome"], told["reason"]) == ("host", "recovered", "h2 is lost")
    assert told["committed_ms"] == 812.4
    failed = Recovery(generation=1, failure_class="job", outcome="failed", reason="no state")
    [_, row] = JobViews().update("c0", view(job(3, recoveries=[failed])), 0)
    told = migration({"wall_ns": 5, "data": row.data})
    assert (told["ranks"], told["from"], told["committed_ms"]) == ([], [], None)


@given(st.sets(st.integers(0, 50)))
def test_spans_name_all_numbers(numbers):
    found = set()
    for part in spans(sorted(numbers)).split(","):
        first, _, last = part.partition("-")
        if part:
            found |= set(range(int(first), int(last or first) + 1))
    assert found == numbers


def test_ranks_on_hosts():
    ranks = {str(i): {"host": f"h{i // 8}", "process": "p"} for i in range(16)}
    assert ranks_on_hosts(ranks) == "0-7 h0, 8-15 h1"
    assert ranks_on_hosts({}) == "-"
    many = {str(i): {"host": f"h{i}", "process": "p"} for i in range(10)}
    assert ranks_on_hosts(many).endswith("7 h7, and 2 more hosts")


def slow(rank=2, host="h2", ratio=1.15):
    return RankSlowness(rank=rank, host=host, ratio=ratio, text=f"rank {rank} on {host} is slow")


def slow_rows(rows):
    return [(row.reason, row.data.get("ratio")) for row in rows if row.kind is EventKind.SLOW_RANK]


def test_a_slow_rank_is_a_row_when_it_is_named_and_one_when_it_is_not_any_more():
    views = JobViews()
    assert slow_rows(views.update("c0", view(job()), 0)) == []
    named = view(job(slow_ranks=[slow()]))
    assert slow_rows(views.update("c0", named, 1)) == [("job gpt: rank 2 on h2 is slow", 1.15)]
    assert [one["slow_ranks"] for one in views.jobs(1)] == [["rank 2 on h2 is slow"]]
    assert slow_rows(views.update("c1", named, 2)) == [], "another fabric-compute says so, too"
    slower = view(job(slow_ranks=[slow(ratio=1.4)]))
    assert slow_rows(views.update("c0", slower, 3)) == [], "the same rank"
    both = view(job(slow_ranks=[slow(), slow(0, "h0", 1.2)]))
    assert slow_rows(views.update("c0", both, 4)) == [("job gpt: rank 0 on h0 is slow", 1.2)]
    [row] = [
        row for row in views.update("c0", view(job(slow_ranks=[slow()])), 5)
        if row.kind is EventKind.SLOW_RANK
    ]  # fmt: skip
    assert row.reason == "job gpt: rank 0 on h0 is not called slow any more"
    assert row.data.items() >= {"job": "gpt", "rank": 0, "host": "h0", "named": False}.items()


def test_the_row_of_a_slow_rank_is_not_written_again_after_a_restart():
    first = JobViews()
    state = view(job(slow_ranks=[slow(), slow(0, "h0")]))
    rows = first.update("c0", state, 0) + first.update("c0", view(job(slow_ranks=[slow()])), 1)
    second = JobViews()
    second.restore([{"kind": row.kind.value, "data": row.data} for row in rows])
    second.restore([{"kind": "slow_rank", "data": {"id": "x", "job": "gpt", "rank": "no"}}])
    assert slow_rows(second.update("c0", view(job(slow_ranks=[slow()])), 2)) == []
    assert slow_rows(second.update("c0", view(job()), 3)) == [
        ("job gpt: rank 2 on h2 is not called slow any more", None)
    ]


def test_a_rank_that_is_slow_on_another_host_is_another_row():
    views = JobViews()
    views.update("c0", view(job(slow_ranks=[slow()])), 0)
    moved = view(job(3, places=("h0", "h1", "h4"), slow_ranks=[slow(host="h4")]))
    assert slow_rows(views.update("c0", moved, 1)) == [("job gpt: rank 2 on h4 is slow", 1.15)]
