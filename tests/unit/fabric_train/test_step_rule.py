import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.rules.step_rule import RankReport, UnrecoverableError, plan_recovery

SPARE = RankReport(None)


def test_all_in_the_same_step_run_it_again():
    plan = plan_recovery([RankReport(7), RankReport(7, ready=True), SPARE])
    assert (plan.step, plan.apply, plan.copies) == (7, frozenset(), {2: 0})


def test_a_step_that_one_rank_applied_is_applied_by_those_with_gradients():
    plan = plan_recovery([RankReport(7, ready=True), RankReport(8), SPARE])
    assert (plan.step, plan.apply, plan.copies) == (8, frozenset({0}), {2: 1})


def test_a_rank_without_whole_gradients_copies_from_one_that_applied():
    plan = plan_recovery([RankReport(7), RankReport(8), RankReport(8)])
    assert (plan.step, plan.copies) == (8, {0: 1})


def test_sources_are_shared_out():
    plan = plan_recovery([RankReport(3), RankReport(3), SPARE, SPARE, SPARE])
    assert plan.copies == {2: 0, 3: 1, 4: 0}


def test_a_replica_that_applies_is_a_source_for_its_group():
    reports = [RankReport(8), RankReport(7, ready=True), SPARE, SPARE]
    plan = plan_recovery(reports, [[0, 2], [1, 3]])
    assert (plan.step, plan.apply, plan.copies) == (8, frozenset({1}), {2: 0, 3: 1})


def test_a_shard_without_a_live_copy_is_refused():
    with pytest.raises(UnrecoverableError, match=r"state of rank 3 after step 8.*replicas: \[3\]"):
        plan_recovery([RankReport(8), RankReport(8), RankReport(8), SPARE], [[0, 1, 2], [3]])


def test_a_shard_that_cannot_reach_the_step_is_refused():
    with pytest.raises(UnrecoverableError, match="rank 1 after step 8"):
        plan_recovery([RankReport(8), RankReport(7)], [[0], [1]])


def test_without_state_there_is_nothing_to_go_on_with():
    with pytest.raises(UnrecoverableError, match="no live rank holds"):
        plan_recovery([SPARE, SPARE])


@pytest.mark.parametrize("groups", [[[0]], [[0, 1], [1]], [[0, 1, 2]]])
def test_groups_are_a_partition(groups):
    with pytest.raises(ValueError, match="no partition"):
        plan_recovery([RankReport(1), RankReport(1)], groups)


@given(st.data())
def test_nothing_finished_is_lost_and_nothing_is_copied_from_a_copy(data):
    """Any state that the gate allows: all within one step, and whoever is behind may be ready."""
    step = data.draw(st.integers(1, 1000))
    some_applied = data.draw(st.booleans())
    reports = []
    for _ in range(data.draw(st.integers(1, 9))):
        kind = data.draw(st.sampled_from(["spare", "behind", "ready", "ahead"]))
        if kind == "spare":
            reports.append(SPARE)
        elif kind == "ahead" and some_applied:
            reports.append(RankReport(step, data.draw(st.booleans())))
        else:
            reports.append(RankReport(step - 1, kind == "ready"))
    committed = [report.committed for report in reports if report.committed is not None]
    if not committed:
        with pytest.raises(UnrecoverableError):
            plan_recovery(reports)
        return
    plan = plan_recovery(reports)
    assert plan.step == max(committed)
    for rank, report in enumerate(reports):
        reached = report.committed == plan.step
        assert [reached, rank in plan.apply, rank in plan.copies].count(True) == 1
        if rank in plan.apply:
            assert report.ready
            assert report.committed == plan.step - 1
    assert not set(plan.copies.values()) & set(plan.copies)
