"""Shares of the timeline by kind: a flood of one kind costs rows of that kind."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.events import EventKind
from telemetry.timeline_shares import SHARES, STATES, over_share

KINDS = [kind.value for kind in EventKind]


def shrink(counts, until):
    """Delete one by one."""
    left = Counter(counts)
    while left.total() > until:
        left[over_share(left)] -= 1
    return left


def test_each_kind_has_a_share_and_all_have_the_whole():
    assert set(SHARES) == set(EventKind)
    assert sum(SHARES.values()) == pytest.approx(1)
    assert sum(SHARES[kind] for kind in STATES) == pytest.approx(0.6)


def test_without_rows_there_is_none_to_delete():
    assert over_share({}) is None
    assert over_share({"flap": 0}) is None


@pytest.mark.parametrize("flood", sorted(set(EventKind) - STATES))
def test_no_flood_of_another_kind_displaces_a_state(flood):
    counts = {"link_state": 500, "flap": 300, "carrier_up": 100} | {flood.value: 100_000}
    left = shrink(counts, 1000)
    assert {kind: left[kind] for kind in ("link_state", "flap", "carrier_up")} == {
        "link_state": 500, "flap": 300, "carrier_up": 100,
    }  # fmt: skip


@pytest.mark.parametrize("flood", sorted(STATES))
def test_a_flood_of_states_leaves_the_others_their_shares(flood):
    """A link that flaps for months: who drained it is still there, and other states are."""
    counts = {"operator": 20, "link_state": 150, "flap": 200} | {flood.value: 100_000}
    left = shrink(counts, 1000)
    assert left["operator"] == 20
    assert all(left[kind] == counts[kind] for kind in ("link_state", "flap") if kind != flood)


@given(st.dictionaries(st.sampled_from([*KINDS, "portal"]), st.integers(0, 10**6)))
def test_rows_below_their_share_never_go(counts):
    kind = over_share(counts)
    total = sum(counts.values())
    if not total:
        assert kind is None
    elif kind != "portal":
        assert counts[kind] >= SHARES[EventKind(kind)] * total - 1e-6
