"""One host's events and the ledger of all."""

from hypothesis import given
from hypothesis import strategies as st

from compute.event_budget import BURST, LARGEST, RATE, TELL_S, EventBudget

BURST_EVENTS = int(BURST // LARGEST)


def test_a_flood_is_cut_and_counted_and_others_are_kept():
    budget = EventBudget()
    kept = sum(budget.spend("h9", LARGEST, 0.0) for _ in range(10_000))
    assert kept == BURST // LARGEST
    assert budget.spend("h1", 300, 0.0)
    assert budget.take_left_out(0.0) == {"h9": 10_000 - kept}
    assert budget.take_left_out(0.0) == {}
    budget.spend("h9", LARGEST, 0.0)
    assert budget.take_left_out(TELL_S - 1) == {}, "a flood is told once a minute"
    assert budget.take_left_out(TELL_S) == {"h9": 1}
    whole = EventBudget()
    for _ in range(BURST_EVENTS):
        assert whole.spend("h9", LARGEST, 0.0)
    assert not whole.spend("h9", LARGEST, 1.0)
    assert whole.spend("h9", LARGEST, LARGEST / RATE)


def test_what_a_day_brings_is_bounded():
    budget = EventBudget()
    kept = sum(budget.spend("h9", LARGEST, float(second)) for second in range(86_400))
    assert kept * LARGEST <= BURST + 86_400 * RATE


def test_a_large_one_is_left_out_alone():
    budget = EventBudget()
    assert not budget.spend("h1", LARGEST + 1, 0.0)
    assert budget.spend("h1", LARGEST, 0.0)
    left = budget.take_left_out(0.0)
    assert left == {"h1": 1}
    budget.put_back(left)
    assert budget.take_left_out(0.0) == left


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, LARGEST), st.floats(0, 9))))
def test_a_host_below_its_rate_loses_nothing_whatever_others_do(others):
    budget, now = EventBudget(), 0.0
    for host, size, pause in others:
        now += pause
        budget.spend(host, size, now)
        now += 1.0
        assert budget.spend("quiet", int(RATE), now)
    budget.take_left_out(now + BURST / RATE + 1)
    assert budget._spent == {}, "nobody is remembered for ever"
