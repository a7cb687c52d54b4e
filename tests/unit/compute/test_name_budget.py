"""New names of jobs: what a host may bring in a time, and each of its users."""

from hypothesis import given
from hypothesis import strategies as st

from compute.name_budget import (
    HOST_BURST,
    HOST_RATE,
    SWEEP_EVERY,
    USER_BURST,
    USER_RATE,
    NameBudget,
)


def taken(budget, host, uid, now, tries=1):
    count = 0
    for _ in range(tries):
        if budget.has_room(host, uid, now):
            budget.spend(host, uid, now)
            count += 1
    return count


def test_all_that_a_host_may_have_comes_at_once():
    budget = NameBudget()
    whole = sum(taken(budget, "h9", uid, 0.0, 2000) for uid in range(3))
    assert whole == HOST_BURST
    assert taken(budget, "h1", 0, 0.0) == 1


def test_a_user_who_makes_names_all_day_leaves_room_to_the_others_of_the_host():
    budget = NameBudget()
    refused = 0
    for second in range(86_400):
        taken(budget, "h1", 666, float(second), 3)
        if second % 600 == 0:
            refused += not taken(budget, "h1", 1000, float(second))
    assert refused == 0


def test_root_of_a_host_who_invents_users_is_bounded_by_the_day():
    budget = NameBudget()
    count = sum(taken(budget, "h9", number, number * 0.1) for number in range(864_000))
    assert count <= HOST_BURST + 86_400 * HOST_RATE
    assert len(budget) <= 2 * HOST_BURST + 2 * SWEEP_EVERY, "nobody is remembered for ever"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.floats(0, 9)), max_size=60))
def test_a_host_below_its_rate_loses_nothing_whatever_others_do(others):
    budget, now = NameBudget(), 0.0
    for host, uid, pause in others:
        taken(budget, host, uid, now, 30)
        now += pause + 1 / USER_RATE
        assert taken(budget, "quiet", 0, now) == 1


def test_one_user_has_half_of_a_host_s_at_once():
    assert taken(NameBudget(), "h1", 1000, 0.0, 2000) == USER_BURST
