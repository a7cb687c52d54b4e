"""The link's state machine: every legal transition, and that every other one raises."""

import itertools

import pytest

from fabricd.links.machine import CARRYING, TRANSITIONS, IllegalTransition, LinkEvent, allows, step
from telemetry.events import LinkState as S

E = LinkEvent

LEGAL = {
    (S.UNKNOWN, E.SEEN_UP): S.UP,
    (S.UNKNOWN, E.ADMIN_DOWN): S.ADMIN,
    (S.UNKNOWN, E.FAULT): S.DOWN,
    (S.UP, E.SUSPECTED): S.SUSPECT,
    (S.UP, E.FAULT): S.DOWN,
    (S.UP, E.WORSE): S.DEGRADED,
    (S.UP, E.ADMIN_DOWN): S.ADMIN,
    (S.SUSPECT, E.CLEARED): S.UP,
    (S.SUSPECT, E.FAULT): S.DOWN,
    (S.SUSPECT, E.WORSE): S.DEGRADED,
    (S.SUSPECT, E.ADMIN_DOWN): S.ADMIN,
    (S.DOWN, E.HEALED): S.HOLD,
    (S.DOWN, E.ADMIN_DOWN): S.ADMIN,
    (S.HOLD, E.FAULT): S.DOWN,
    (S.HOLD, E.HELD): S.PROBATION,
    (S.HOLD, E.ADMIN_DOWN): S.ADMIN,
    (S.PROBATION, E.FAULT): S.DOWN,
    (S.PROBATION, E.SETTLED): S.UP,
    (S.PROBATION, E.WORSE): S.DEGRADED,
    (S.PROBATION, E.ADMIN_DOWN): S.ADMIN,
    (S.DEGRADED, E.FAULT): S.DOWN,
    (S.DEGRADED, E.BETTER): S.UP,
    (S.DEGRADED, E.ADMIN_DOWN): S.ADMIN,
    (S.ADMIN, E.ADMIN_UP): S.UNKNOWN,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_pair(state, event):
    if (state, event) in LEGAL:
        assert allows(state, event)
        assert step(state, event) is LEGAL[state, event]
    else:
        assert not allows(state, event)
        with pytest.raises(IllegalTransition) as caught:
            step(state, event)
        assert (caught.value.state, caught.value.event) == (state, event)


def test_every_state_has_a_row_and_can_be_left():
    assert set(TRANSITIONS) == set(S)
    assert all(TRANSITIONS.values())


def test_a_link_in_trouble_carries_nothing():
    assert set(S) - CARRYING == {S.DOWN, S.HOLD, S.ADMIN}
