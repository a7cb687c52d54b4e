"""Overrides: their ends hold over restarts and clocks that are set; garbage is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.operate.overrides import MAX_REASON, ActiveOverrides, Kind, clean_reason

SEC = 10**9
HOUR = 3600 * SEC


def put(overrides, kind=Kind.MAINTENANCE, target="rail0", seconds=3600, wall=100 * HOUR, now=0):
    return overrides.put(
        kind, target, seconds=seconds, reason="new optics", by="uid 0", wall_ns=wall, now=now
    )


def test_an_override_ends_by_itself_and_says_so_once():
    overrides = ActiveOverrides()
    override = put(overrides, now=5 * SEC)
    assert overrides.due_at() == 5 * SEC + HOUR
    assert overrides.expire(5 * SEC + HOUR - 1) == []
    assert overrides.left_s(override, 5 * SEC) == 3600
    assert overrides.expire(5 * SEC + HOUR) == [override]
    assert overrides.expire(6 * SEC + HOUR) == []
    assert overrides.of(Kind.MAINTENANCE) == {}


def test_a_drain_may_have_no_end_a_window_may_not():
    overrides = ActiveOverrides()
    put(overrides, Kind.DRAIN, seconds=None)
    assert overrides.expire(10**18) == []
    with pytest.raises(ValueError, match="needs an end"):
        put(overrides, seconds=None)


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 8 * 86_400, float("inf"), float("nan")])
def test_durations_that_are_refused(seconds):
    with pytest.raises(ValueError, match="allowed: from 1 s to 7 d"):
        put(ActiveOverrides(), seconds=seconds)


def test_asking_again_replaces_the_end():
    overrides = ActiveOverrides()
    put(overrides)
    put(overrides, seconds=60)
    assert overrides.due_at() == 60 * SEC
    put(overrides, Kind.DRAIN, seconds=60)
    put(overrides, Kind.DRAIN, seconds=None)
    assert [w.kind for w in overrides.expire(HOUR)] == [Kind.MAINTENANCE]


def restored(overrides, wall_ns, now=0):
    other = ActiveOverrides()
    assert other.restore(json.loads(json.dumps(overrides.save())), wall_ns=wall_ns, now=now) == []
    return other


def test_the_end_holds_over_a_restart():
    overrides = ActiveOverrides()
    put(overrides)
    later = restored(overrides, wall_ns=100 * HOUR + HOUR // 2, now=7)
    assert later.due_at() == 7 + HOUR // 2
    assert later.save() == overrides.save()


def test_what_ended_meanwhile_is_reported_once():
    overrides = ActiveOverrides()
    override = put(overrides)
    assert restored(overrides, wall_ns=200 * HOUR).expire(0) == [override]


DAY = 24 * HOUR


def test_within_a_boot_a_wall_clock_that_is_set_ends_nothing():
    """A drain of 24 h ended at once where fabricd was restarted with the clock a year ahead."""
    overrides = ActiveOverrides("boot")
    put(overrides, Kind.DRAIN, seconds=86_400, now=5 * HOUR)
    document = json.loads(json.dumps(overrides.save()))
    for wall in (100 * HOUR + 365 * DAY, 0, 101 * HOUR):
        later = ActiveOverrides("boot")
        assert later.restore(document, wall_ns=wall, now=6 * HOUR) == []
        assert later.due_at() == 5 * HOUR + DAY
    later = ActiveOverrides("boot")
    later.restore(document, wall_ns=100 * HOUR, now=5 * HOUR + DAY)
    assert [o.kind for o in later.expire(5 * HOUR + DAY)] == [Kind.DRAIN]


@pytest.mark.parametrize(
    ("wall", "left", "told"),
    [
        (110 * HOUR, 14 * HOUR, False),
        (100 * HOUR + 20 * DAY, 0, False),
        (100 * HOUR + 365 * DAY, DAY, True),
    ],
    ids=["on", "over", "a year ahead"],
)
def test_over_a_reboot_the_wall_clock_counts_unless_it_is_implausible(wall, left, told):
    overrides = ActiveOverrides("boot")
    put(overrides, Kind.DRAIN, seconds=86_400, now=5 * HOUR)
    later = ActiveOverrides("the next")
    said = later.restore(json.loads(json.dumps(overrides.save())), wall_ns=wall, now=HOUR)
    assert later.due_at() == HOUR + left
    assert bool(said) == told
    if told:
        assert said == [
            "drain rail0: ended 364 d ago by the wall clock; it holds for 86400 s more: "
            "is the clock right?"
        ]


def test_a_clock_that_was_set_back_prolongs_nothing():
    overrides = ActiveOverrides()
    put(overrides)
    assert restored(overrides, wall_ns=0, now=3).due_at() == 3 + HOUR, "at most what was asked for"


GOOD = {"kind": "drain", "target": "rail0", "begun_wall_ns": 1, "ends_wall_ns": None,
        "reason": "", "by": "uid 0"}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"kind": "x"}, {"target": ""}, {"target": 3}, {"begun_wall_ns": "1"}, {"ends_wall_ns": 0},
     {"ends_wall_ns": 1.5}, {"kind": "maintenance"}, {"begun_wall_ns": True}],
)  # fmt: skip
def test_one_bad_override_does_not_cost_the_others(change):
    overrides = ActiveOverrides()
    refused = overrides.restore([GOOD | change, GOOD], wall_ns=0, now=0)
    assert len(refused) == 1
    assert list(overrides.of(Kind.DRAIN)) == ["rail0"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x:
       st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=4)))  # fmt: skip
def test_any_document_is_taken_or_refused(document):
    overrides = ActiveOverrides()
    refused = overrides.restore(document, wall_ns=0, now=0)
    assert refused or document == []


@given(st.text())
def test_a_reason_is_one_printable_line(text):
    line = clean_reason(text)
    assert len(line) <= MAX_REASON
    assert line == "" or line.isprintable()
