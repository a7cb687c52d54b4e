"""Wishes: their ends hold over restarts and clocks that are set; garbage is told, not believed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.operate.wishes import MAX_REASON, Kind, Wishes, clean_reason

SEC = 10**9
HOUR = 3600 * SEC


def put(wishes, kind=Kind.MAINTENANCE, target="rail0", seconds=3600, wall=100 * HOUR, now=0):
    return wishes.put(
        kind, target, seconds=seconds, reason="new optics", by="uid 0", wall_ns=wall, now=now
    )


def test_a_wish_ends_by_itself_and_says_so_once():
    wishes = Wishes()
    wish = put(wishes, now=5 * SEC)
    assert wishes.due_at() == 5 * SEC + HOUR
    assert wishes.expire(5 * SEC + HOUR - 1) == []
    assert wishes.left_s(wish, 5 * SEC) == 3600
    assert wishes.expire(5 * SEC + HOUR) == [wish]
    assert wishes.expire(6 * SEC + HOUR) == []
    assert wishes.of(Kind.MAINTENANCE) == {}


def test_a_drain_may_have_no_end_a_window_may_not():
    wishes = Wishes()
    put(wishes, Kind.DRAIN, seconds=None)
    assert wishes.expire(10**18) == []
    with pytest.raises(ValueError, match="needs an end"):
        put(wishes, seconds=None)


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 8 * 86_400, float("inf"), float("nan")])
def test_durations_that_are_refused(seconds):
    with pytest.raises(ValueError, match="allowed: from 1 s to 7 d"):
        put(Wishes(), seconds=seconds)


def test_asking_again_replaces_the_end():
    wishes = Wishes()
    put(wishes)
    put(wishes, seconds=60)
    assert wishes.due_at() == 60 * SEC
    put(wishes, Kind.DRAIN, seconds=60)
    put(wishes, Kind.DRAIN, seconds=None)
    assert [w.kind for w in wishes.expire(HOUR)] == [Kind.MAINTENANCE]


def restored(wishes, wall_ns, now=0):
    other = Wishes()
    assert other.restore(json.loads(json.dumps(wishes.save())), wall_ns=wall_ns, now=now) == []
    return other


def test_the_end_holds_over_a_restart():
    wishes = Wishes()
    put(wishes)
    later = restored(wishes, wall_ns=100 * HOUR + HOUR // 2, now=7)
    assert later.due_at() == 7 + HOUR // 2
    assert later.save() == wishes.save()


def test_what_ended_meanwhile_is_reported_once():
    wishes = Wishes()
    wish = put(wishes)
    assert restored(wishes, wall_ns=200 * HOUR).expire(0) == [wish]


def test_a_clock_that_was_set_back_prolongs_nothing():
    wishes = Wishes()
    put(wishes)
    assert restored(wishes, wall_ns=0, now=3).due_at() == 3 + HOUR, "at most what was asked for"


GOOD = {"kind": "drain", "target": "rail0", "begun_wall_ns": 1, "ends_wall_ns": None,
        "reason": "", "by": "uid 0"}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"kind": "x"}, {"target": ""}, {"target": 3}, {"begun_wall_ns": "1"}, {"ends_wall_ns": 0},
     {"ends_wall_ns": 1.5}, {"kind": "maintenance"}, {"begun_wall_ns": True}],
)  # fmt: skip
def test_one_bad_wish_does_not_cost_the_others(change):
    wishes = Wishes()
    refused = wishes.restore([GOOD | change, GOOD], wall_ns=0, now=0)
    assert len(refused) == 1
    assert list(wishes.of(Kind.DRAIN)) == ["rail0"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x:
       st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=4)))  # fmt: skip
def test_any_document_is_taken_or_refused(document):
    wishes = Wishes()
    refused = wishes.restore(document, wall_ns=0, now=0)
    assert refused or document == []


@given(st.text())
def test_a_reason_is_one_printable_line(text):
    line = clean_reason(text)
    assert len(line) <= MAX_REASON
    assert line == "" or line.isprintable()
