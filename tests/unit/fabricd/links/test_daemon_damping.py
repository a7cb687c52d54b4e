"""Damping: penalty per down, decay, suppress and reuse, ceiling, second tier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.links.damping import Damping, DampingRules

S = 10**9
RULES = DampingRules()


def test_one_down_is_not_suppressed_and_decays_by_half():
    d = Damping(RULES)
    d.down(0)
    assert d.penalty(0) == 1000
    assert d.penalty(15 * S) == pytest.approx(500)
    assert d.penalty(30 * S) == pytest.approx(250)
    assert not d.is_suppressed(0)
    assert d.reuse_at(5) == 5


def test_three_downs_suppress_until_reuse():
    d = Damping(RULES)
    for _ in range(3):
        d.down(0)
    assert d.is_suppressed(0)
    free = d.reuse_at(0)
    assert free == pytest.approx(15 * S * 1.58496, rel=1e-4)  # log2(3) half-lives
    assert d.is_suppressed(free - 10**6)
    assert not d.is_suppressed(free)
    assert not d.is_suppressed(free + 1), "reused stays reused"


def test_between_reuse_and_suppress_a_reused_link_stays_free():
    d = Damping(RULES)
    d.down(0, 3)
    free = d.reuse_at(0)
    assert not d.is_suppressed(free)
    d.down(free)  # about 2000: above reuse, below suppress
    assert 1900 < d.penalty(free) < 2500
    assert not d.is_suppressed(free)


@given(st.lists(st.tuples(st.integers(0, 5 * S), st.integers(1, 1000)), max_size=50))
def test_never_suppressed_for_longer_than_the_maximum(gaps):
    d = Damping(RULES)
    now = 0
    for gap, count in gaps:
        now += gap
        d.down(now, count)
        assert 0 <= d.penalty(now) <= RULES.ceiling
        assert d.reuse_at(now) - now <= RULES.max_suppress_ns + 1
    assert not d.is_suppressed(now + RULES.max_suppress_ns + 1)


def test_more_downs_never_wait_less():
    waits = []
    for count in range(1, 40):
        d = Damping(RULES)
        d.down(0, count)
        waits.append(d.reuse_at(0))
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(RULES.max_suppress_ns, abs=2)


def test_count_is_worth_that_many_downs():
    one, many = Damping(RULES), Damping(RULES)
    one.down(7, 4)
    for _ in range(4):
        many.down(7)
    assert one.penalty(9) == many.penalty(9)
    one.down(9, 0)
    assert one.penalty(9) == many.penalty(9)


def test_second_tier_tells_once_and_again_after_a_quiet_time():
    d = Damping(DampingRules(second_tier_flaps=5))
    d.down(0, 5)
    assert not d.operator_due(0)
    d.down(S, 1)
    assert d.operator_due(S)
    assert not d.operator_due(2 * S)
    d.down(3 * S, 10)
    assert not d.operator_due(3 * S)
    later = 3 * S + 3600 * S + 1
    assert d.hourly(later) == 0
    assert not d.operator_due(later)
    d.down(later, 6)
    assert d.operator_due(later)


def test_saved_and_restored_it_goes_on_decaying():
    d = Damping(RULES)
    d.down(0, 3)
    document = d.save(S)
    e = Damping(RULES)
    e.restore(document, now=100 * S, elapsed_ns=4 * S)
    assert e.is_suppressed(100 * S)
    assert e.penalty(100 * S) == pytest.approx(d.penalty(5 * S))
    assert e.hourly(100 * S) == 3


def test_return_waits_until_it_and_one_more_down_fit_into_the_window():
    d = Damping(DampingRules(max_transitions=3, window_ns=600 * S))
    for at in (0, 2, 100):
        d.published(at * S)
    assert d.return_at(100 * S) == 602 * S, "the first two have to be out of the window"
    e = Damping(DampingRules())
    e.restore(d.save(100 * S), now=5 * S, elapsed_ns=50 * S)
    assert e.return_at(5 * S) == 5 * S + (602 - 150) * S
    assert d.publications(602 * S) == 1
    assert d.return_at(602 * S) == 602 * S
    assert Damping(DampingRules(max_transitions=0)).return_at(0) == 0


def test_a_document_of_an_older_version_has_no_window():
    d = Damping(RULES)
    d.published(0)
    document = d.save(S)
    del document["published"]
    e = Damping(RULES)
    e.restore(document, S, 0)
    assert e.publications(S) == 0


def test_ten_flaps_a_second_for_an_hour_are_all_counted():
    d = Damping(RULES)
    for tenth in range(36_000):
        d.down(tenth * S // 10)
    now = 3600 * S - 1
    assert d.hourly(now) == 36_000
    document = d.save(now)
    assert len(document["downs"]) <= 61, "it is stored fifty times a second then"
    e = Damping(RULES)
    e.restore(document, now, 0)
    assert e.hourly(now) == 36_000
    assert 36_000 * 0.97 < e.hourly(now + 60 * S) + 600 < 36_000 * 1.03 + 600
    assert e.hourly(now + 3600 * S) <= 600
    assert e.hourly(now + 3700 * S) == 0


@pytest.mark.parametrize(
    "document",
    [{}, {"penalty": "x", "suppressed": 1, "told": 0, "downs": []},
     {"penalty": float("nan"), "suppressed": True, "told": False, "downs": []},
     {"penalty": 1.0, "suppressed": True, "told": False, "downs": [3]}],
)  # fmt: skip
def test_a_foreign_document_is_refused_and_nothing_changes(document):
    d = Damping(RULES)
    with pytest.raises((KeyError, TypeError, ValueError)):
        d.restore(document, 0, 0)
    assert d.penalty(0) == 0
    assert not d.suppressed
