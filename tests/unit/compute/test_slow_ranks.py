"""A rank that is slower than the others is named, and nobody else, however uneven the steps are.

Jobs of ``uneven_steps`` in virtual time, and variants of the rule that have to fail in them.
"""

import random
import statistics
from dataclasses import replace

import pytest
from uneven_steps import PERCENT, Job, Unevenness, document, generation, uneven

from compute.decide import slow_ranks
from compute.decide.slow_ranks import AT_ONCE, GATHER_S, MOST_ROUNDS, SlowRanks
from fabric_train.messages.step_window import BLOCKS, StepWindow

HALF_AN_HOUR = 1800.0
TOLD_S = 2.0
"""So long `Decider` may take until it tells: `STATE_S`, and two cycles."""
NAMED_S = 60.0 - TOLD_S
USUAL = Unevenness(
    step_s=0.25, own=0.03, common=0.2, long_steps=0.2, imbalance=0.03, drift=0.1,
    checkpoint_every=200, checkpoint_s=2.0, stall=0.001, stall_s=2.0, buckets=3,
)  # fmt: skip
EPISODES = replace(USUAL, episodes=0.01, episode_s=12.0)
SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, 300))]


def from_then_on(rank, then, factor=1.15):
    return lambda one, now: factor if one == rank and now >= then else 1.0


def reasons(job):
    return [(one.fields["rank"], one.fields["state"]) for one in job.slow.take_records()]


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_named_in_half_an_hour_of_uneven_steps(seed):
    ranks, how = uneven(seed)
    job = Job(seed, ranks, how).run(HALF_AN_HOUR)
    assert reasons(job) == []
    assert job.windows > 10, "it was measured"


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_each_rank_that_is_slowed_by_15_percent_is_named_within_a_minute(ranks):
    for rank in range(ranks):
        then = random.Random(rank).uniform(100, 130)
        job = Job(rank, ranks, USUAL, factor=from_then_on(rank, then)).run(then + NAMED_S)
        assert job.named_at.keys() == {rank}
        [found] = job.slow.named
        assert 1.1 < found.ratio < 1.2
        assert found.text.startswith(f"rank {rank} on h{rank} is slow: 1.1")


def test_a_rank_that_is_slow_from_the_start_is_named():
    job = Job(1, 4, USUAL, factor=from_then_on(2, 0.0)).run(NAMED_S)
    assert job.named_at.keys() == {2}


def test_two_of_five_are_named():
    def factor(rank, _now):
        return 1.2 if rank in (1, 4) else 1.0

    assert Job(1, 5, USUAL, factor=factor).run(120).named_at.keys() == {1, 4}


def test_of_a_noisy_rank_several_windows_count_together():
    noisy = Unevenness(step_s=0.25, own=0.12)
    for seed in range(4):
        job = Job(seed, 4, noisy, factor=from_then_on(1, 100.0)).run(700)
        assert job.ever == {1}
    assert Job(1, 4, noisy).run(HALF_AN_HOUR).ever == set()


def test_ranks_that_are_slowed_together_are_not_named():
    job = Job(1, 4, USUAL, factor=lambda _rank, now: 1.5 if now > 100 else 1.0)
    assert job.run(400).ever == set()


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_fewer_than_three_ranks_none_is_named(ranks):
    job = Job(1, ranks, USUAL, factor=from_then_on(0, 0.0, 2.0)).run(200)
    assert job.ever == set()
    assert job.windows > 10


def test_a_rank_that_is_slow_for_one_window_is_not_named():
    for seed in range(3):
        job = Job(seed, 4, EPISODES).run(HALF_AN_HOUR)
        assert job.episodes > 20
        assert job.ever == set()


def test_a_rank_that_hardly_delays_the_others_is_not_named():
    quick = Unevenness(step_s=0.002, own=0.01, transfer_s=0.05)
    job = Job(1, 4, quick, factor=from_then_on(1, 0.0)).run(150)
    assert job.ever == set()
    slow = Unevenness(step_s=0.02, own=0.01, transfer_s=0.05)
    assert Job(1, 4, slow, factor=from_then_on(1, 0.0)).run(150).ever == {1}


def test_a_rank_is_cleared_once_it_is_quick_again_and_not_before():
    speeds = [(0, 1.0), (50, 1.15), (150, 1.06), (350, 1.0)]

    def factor(rank, now):
        return [speed for since, speed in speeds if now >= since][-1] if rank == 1 else 1.0

    job = Job(1, 4, replace(USUAL, own=0.01, imbalance=0.0), factor=factor).run(345)
    assert [one.rank for one in job.slow.named] == [1], "6 % are above half of the limit"
    assert job.slow.named[0].ratio < 1.1, "what is told follows"
    job.run(60)
    assert reasons(job) == [(1, "named"), (1, "cleared")]
    assert job.slow.named == []


def test_a_new_generation_begins_anew():
    job = Job(1, 4, USUAL, factor=from_then_on(1, 0.0)).run(100)
    assert reasons(job) == [(1, "named")]
    stale = document("h1", 4, job.ranks[1].window)
    news = generation(4, number=2)
    job.slow.update(stale, news, job.now)
    assert job.slow.named == []
    [record] = job.slow.take_records()
    assert (record.fields["state"], record.fields["rank"]) == ("cleared", 1)
    assert record.fields["reason"] == "generation 2: it is measured anew"
    for rank in range(4):
        old = replace(window(9), generation=1)
        job.slow.update(document(f"h{rank}", 4, old), news, job.now)
    assert job.slow.rounds == 0, "windows of the generation before say nothing of this one"


def window(last, own_ns=1_000_000, steps=8):
    return StepWindow(1, last, steps, 2 * steps * own_ns, [own_ns] * BLOCKS)


def told(slow, rank, one, now, ranks=4):
    slow.update(document(f"h{rank}", ranks, one), generation(ranks), now)


def test_the_window_of_a_host_that_says_nothing_is_not_awaited_for_long():
    slow = SlowRanks(PERCENT)
    for number in (1, 2):
        for rank in range(3):
            own = 1_150_000 if rank == 0 else 1_000_000
            told(slow, rank, window(8 * number, own), 12.0 * number)
    assert (slow.rounds, slow.named) == (2, [])
    told(slow, 1, window(16), 24.0 + GATHER_S)
    assert slow.rounds == 0
    assert [one.rank for one in slow.named] == [0]


def test_half_of_the_ranks_are_too_few():
    slow = SlowRanks(PERCENT)
    for number in range(1, 30):
        for rank in range(2):
            own = 1_150_000 if rank == 0 else 1_000_000
            told(slow, rank, window(8 * number, own), number * 12.0)
    assert slow.named == []


def test_windows_that_no_rank_can_have_measured_change_nothing():
    slow = SlowRanks(PERCENT)
    for blocks in ([], [1] * 7, [0] * 8, [-1] * 8, [1 << 62] * 8):
        told(slow, 0, StepWindow(1, 8, 8, 10, blocks), 0.0)
    for last, steps in ((7, 8), (8, 7), (-1, 8), (1 << 62, 8)):
        told(slow, 0, StepWindow(1, last, steps, 10, [5] * BLOCKS), 0.0)
    assert slow.rounds == 0
    for last in range(8, 10_000):
        told(slow, 0, window(last), 0.0)
    assert slow.rounds == MOST_ROUNDS, "what is kept is bounded"


def test_a_window_of_other_steps_is_not_compared():
    slow = SlowRanks(PERCENT)
    for number in range(1, 9):
        for rank in range(4):
            one = window(16 * number, 2_000_000 if rank == 3 else 1_000_000)
            told(slow, rank, replace(one, steps=9) if rank == 3 else one, number * 12.0)
    assert slow.named == []


def test_a_large_job_is_judged_by_and_by():
    """The last document of a window must not stop all decisions while 16,000 ranks are judged."""
    ranks = 2 * AT_ONCE + 10
    slow, everybody = SlowRanks(PERCENT), generation(ranks)
    for number in (1, 2):
        for rank in range(ranks):
            own = 1_150_000 if rank == ranks - 1 else 1_000_000
            slow.update(document(f"h{rank}", ranks, window(8 * number, own)), everybody, 12.0)
        assert slow.named == []
        again = document("h0", ranks, window(8 * number))
        slow.update(again, everybody, 12.0)
        assert slow.named == []
        slow.update(again, everybody, 12.0)
    assert [one.rank for one in slow.named] == [ranks - 1]


# Variants of the rule that are wrong.


def test_the_mean_of_ranks_instead_of_their_median_names_others_than_the_quick_one(monkeypatch):
    job = Job(0, 4, USUAL, factor=from_then_on(0, 0.0, 0.6)).run(150)
    assert job.ever == set()
    monkeypatch.setattr(slow_ranks, "of_ranks", statistics.fmean)
    job = Job(0, 4, USUAL, factor=from_then_on(0, 0.0, 0.6)).run(150)
    assert job.ever == {1, 2, 3}


def test_one_window_instead_of_two_names_a_rank_that_was_slow_for_a_moment(monkeypatch):
    monkeypatch.setattr(slow_ranks, "IN_A_ROW", 1)
    assert any(Job(seed, 4, EPISODES).run(HALF_AN_HOUR).ever for seed in range(3))


def test_a_rank_that_counts_its_waiting_is_never_told_from_the_slow_one():
    job = Job(2, 4, USUAL, factor=from_then_on(2, 50.0), waiting=True).run(300)
    assert job.ever == set()


def test_without_a_bound_noise_is_named(monkeypatch):
    monkeypatch.setattr(slow_ranks, "CONFIDENCE", 0.0)
    noisy = Unevenness(step_s=1.0, own=0.3)
    assert any(Job(seed, 8, noisy).run(HALF_AN_HOUR).ever for seed in range(3))
    monkeypatch.undo()
    assert not any(Job(seed, 8, noisy).run(HALF_AN_HOUR).ever for seed in range(3))
