"""Histories of jobs whose buddies keep whole copies: no wrong state, one step again at most."""

import dataclasses

import copy_histories as histories
import pytest

from fabric_train.rules.step_rule import RankReport, UnrecoverableError, plan_return

WORLDS = 1500


def test_no_history_ends_with_a_wrong_state_and_at_most_one_step_is_run_again():
    worlds = [histories.play(seed) for seed in range(WORLDS)]
    assert sum(bool(one.refused) for one in worlds) < WORLDS / 2
    assert sum(one.step for one in worlds) > WORLDS
    assert sum(one.again for one in worlds) > WORLDS / 10


@pytest.mark.nightly
def test_so_do_twenty_thousand_more():
    for seed in range(WORLDS, WORLDS + 20_000):
        histories.play(seed)


def stays(reports, groups):
    """Nobody goes back: the highest step counts."""
    plan = plan_return(reports, groups)
    held = max(one.committed for one in reports if one.committed is not None)
    return dataclasses.replace(plan, step=held, back=frozenset())


def from_any_copy(reports, groups):
    reports = [
        dataclasses.replace(one, keeps=dict.fromkeys(one.keeps, (0, 1 << 30))) for one in reports
    ]
    return plan_return(reports, groups)


def replacement_goes_back_alone(reports, groups):
    return dataclasses.replace(plan_return(reports, groups), back=frozenset())


def play_all(**how):
    for seed in range(WORLDS):
        histories.play(seed, **how)


@pytest.mark.parametrize("broken", [stays, from_any_copy, replacement_goes_back_alone])
def test_rules_without_one_of_their_sentences_fail_here(broken):
    with pytest.raises(histories.WrongStateError):
        play_all(plan=broken)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"early": True}, id="the last copy goes before all have the next one"),
        pytest.param({"renews": False}, id="a rank votes before its buddies have its copy"),
        pytest.param({"owns": False}, id="a rank keeps no copy of itself"),
        pytest.param({"seeds": False}, id="a new buddy gets no first copy"),
    ],
)
def test_worlds_without_one_of_the_sentences_fail_here(how):
    with pytest.raises(histories.WrongStateError):
        play_all(**how)


def test_who_is_lost_behind_a_step_takes_all_back_by_one():
    reports = [
        RankReport(5, own=4, keeps={1: (4, 4)}),
        RankReport(None),
        RankReport(5, own=4, keeps={0: (4, 4)}),
    ]
    plan = plan_return(reports, [(0,), (1,), (2,)])
    assert (plan.step, plan.copies, plan.rebuilt) == (4, {1: 0}, {1})
    assert (plan.back, plan.again, plan.apply) == ({0, 2}, 1, frozenset())


def test_who_is_lost_before_a_vote_takes_nobody_back():
    reports = [RankReport(5, own=4, keeps={1: (4, 5)}), RankReport(None), RankReport(5, own=4)]
    plan = plan_return(reports, [(0,), (1,), (2,)])
    assert (plan.step, plan.back, plan.again) == (5, frozenset(), 0)


def test_a_step_that_was_torn_counts_for_nothing():
    reports = [RankReport(None, own=4), RankReport(5, own=4), RankReport(4, own=3)]
    plan = plan_return(reports, [(0,), (1,), (2,)])
    assert (plan.step, plan.back, plan.again) == (4, {0, 1}, 1)


def test_a_rank_whose_copies_are_gone_is_named():
    reports = [RankReport(5, own=4, keeps={2: (4, 4)}), RankReport(None), RankReport(5, own=4)]
    with pytest.raises(UnrecoverableError, match="the state of rank 1 after step 5 has no live"):
        plan_return(reports, [(0,), (1,), (2,)])
