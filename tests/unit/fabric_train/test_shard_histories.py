"""Histories of jobs with shards: nobody goes on with a wrong state, nothing applied is lost."""

import dataclasses

import pytest
import shard_histories as histories

from fabric_train.rules.step_rule import plan_recovery

WORLDS = 1500


def test_no_history_ends_with_a_wrong_state_and_none_is_refused_without_need():
    worlds = [histories.play(seed) for seed in range(WORLDS)]
    assert sum(bool(one.refused) for one in worlds) < WORLDS / 2
    assert sum(one.step for one in worlds) > WORLDS


@pytest.mark.nightly
def test_so_do_ten_thousand_more():
    for seed in range(WORLDS, WORLDS + 10_000):
        histories.play(seed)


def sent_before_the_step(reports, groups):
    plan = plan_recovery(reports, groups)

    class Early(type(plan)):
        def is_owed(self, _rank):
            return False

    return Early(**{one.name: getattr(plan, one.name) for one in dataclasses.fields(plan)})


def from_any_keeper(reports, groups):
    reports = [
        dataclasses.replace(one, keeps=dict.fromkeys(one.keeps, (0, 1 << 30))) for one in reports
    ]
    return plan_recovery(reports, groups)


def at_the_lowest_step(reports, groups):
    plan = plan_recovery(reports, groups)
    held = [one.committed for one in reports if one.committed is not None]
    return dataclasses.replace(plan, step=min(held))


def play_all(**how):
    for seed in range(WORLDS):
        histories.play(seed, **how)


@pytest.mark.parametrize("broken", [sent_before_the_step, from_any_keeper, at_the_lowest_step])
def test_rules_without_one_of_their_sentences_fail_here(broken):
    with pytest.raises(histories.WrongStateError):
        play_all(plan=broken)


def test_a_buddy_that_forgets_a_rank_before_it_is_rebuilt_fails_here():
    with pytest.raises(histories.WrongStateError):
        play_all(drops=True)


def test_a_job_whose_new_buddies_get_no_first_copy_fails_here():
    with pytest.raises(histories.WrongStateError, match="knows 0 to -1"):
        play_all(seeds=False)
