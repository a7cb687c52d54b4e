"""A clock service that starts again: the page's time goes on."""

from dataclasses import replace

import pytest

from clocksync.page.clock_page import NOTHING, Line, State
from fabricd.clock.restart_handover import RestartHandover

SECOND = 10**9
RAW = 5_000 * SECOND
FABRIC = 1_800_000_000 * SECOND
BEFORE = Line(
    RAW, FABRIC, 10e-6, 800.0, 1e-8, 0.0, SECOND, 3600 * SECOND, State.LOCKED, 7, epoch=40
)


def later(seconds, off_ns=0, epoch=90):
    raw = RAW + round(seconds * SECOND)
    return replace(
        BEFORE, raw_ns=raw, fabric_ns=BEFORE.at(raw).ns + off_ns, bound_ns=500.0, epoch=epoch
    )


def test_until_there_is_a_time_the_page_is_left_alone():
    handover = RestartHandover(BEFORE, RAW + SECOND)
    assert handover.cross(NOTHING, RAW + 2 * SECOND) is None
    assert handover.cross(NOTHING, RAW + 2 * SECOND) is None
    crossed = handover.cross(later(5), RAW + 5 * SECOND)
    assert (crossed.state, crossed.epoch) == (State.LOCKED, 40)
    assert handover.cross(later(6), RAW + 6 * SECOND).epoch == 40
    assert handover.cross(later(7, epoch=91), RAW + 7 * SECOND).epoch == 91, (
        "it joined another mesh later"
    )
    assert handover.cross(NOTHING, RAW + 2 * SECOND) is NOTHING, "its own line counts now"


@pytest.mark.parametrize("off_ns", [2000, -2000, 10**9])
def test_another_time_is_another_epoch(off_ns):
    handover = RestartHandover(BEFORE, RAW + SECOND)
    assert handover.cross(NOTHING, RAW + 2 * SECOND) is None
    assert handover.cross(later(5, off_ns), RAW + 5 * SECOND).epoch == 90


def test_a_host_alone_goes_on_with_the_time_that_it_had():
    now = RAW + 10 * SECOND
    assert RestartHandover(BEFORE, now).wall_ns(now, 5) == BEFORE.at(now).ns
    assert RestartHandover(None, now).wall_ns(now, 5) == 5
    assert RestartHandover(BEFORE, now).wall_ns(RAW + 7200 * SECOND, 5) == 5, (
        "nothing was said for hours"
    )


def test_a_host_that_starts_again_alone_holds_over_as_it_would_have():
    """It begins a mesh and is right by definition there: of another host's time it is not."""
    held = replace(BEFORE, state=State.HOLDOVER)
    handover = RestartHandover(held, RAW + SECOND)
    own = replace(later(5), reference=9, bound_ns=2.0)
    assert handover.cross(own, RAW + 5 * SECOND, alone=True) is None
    assert handover.cross(own, RAW + 600 * SECOND, alone=True) is None
    theirs = later(900)
    assert handover.cross(theirs, RAW + 900 * SECOND).epoch == 40, "a neighbour is heard"


def test_alone_it_goes_on_as_the_reference_that_it_was_or_when_the_page_ends():
    own = replace(later(5), reference=BEFORE.reference)
    assert (
        RestartHandover(BEFORE, RAW + SECOND).cross(own, RAW + 5 * SECOND, alone=True).epoch == 40
    )
    late = replace(later(5), raw_ns=RAW + 3601 * SECOND, reference=9)
    handover = RestartHandover(BEFORE, RAW + SECOND)
    assert handover.cross(late, RAW + 3601 * SECOND, alone=True) is late


@pytest.mark.parametrize("before", [None, replace(BEFORE, raw_ns=RAW + 10**15)])
def test_without_a_page_of_this_boot_the_service_says_what_it_knows(before):
    handover = RestartHandover(before, RAW)
    assert handover.cross(NOTHING, RAW + 2 * SECOND) is NOTHING
    assert handover.cross(later(1), RAW + 1 * SECOND).epoch == 90


def test_a_page_that_nobody_wrote_for_hours_is_no_time():
    handover = RestartHandover(BEFORE, RAW + SECOND)
    assert handover.cross(NOTHING, RAW + 7200 * SECOND) is NOTHING


def test_a_clock_that_is_another_ends_what_was_known():
    handover = RestartHandover(BEFORE, RAW)
    handover.drop()
    assert handover.cross(NOTHING, RAW + 2 * SECOND) is NOTHING
