"""The part of a state that moves beside the next step: who waits for it, and what it leaves."""

import threading

import pytest

from fabric_train.state import later_part
from fabric_train.state.later_part import LaterPart


@pytest.fixture
def under_way():
    """Parts that move until the test is over, or lets them end."""
    goes_on = threading.Event()
    yield lambda *, receives=True: LaterPart(lambda: goes_on.wait(60), receives=receives), goes_on
    goes_on.set()


def test_it_is_waited_for(under_way):
    make, ends = under_way
    part = make()
    ends.set()
    assert part.wait(lambda: True)
    assert part.drop(60)


def test_nobody_waits_for_one_whose_generation_is_broken(under_way, monkeypatch):
    monkeypatch.setattr(later_part, "_LOOK_S", 0.001)
    make, _ = under_way
    assert not make().wait(lambda: False)


@pytest.mark.parametrize("receives", [False, True])
def test_who_has_not_received_all_holds_no_state(receives):
    def move():
        raise RuntimeError("connection closed")

    part = LaterPart(move, receives=receives)
    with pytest.raises(RuntimeError, match="connection closed"):
        part.wait(lambda: True)
    assert part.drop(60) == (not receives)


def test_one_that_does_not_end_is_an_error(under_way):
    make, _ = under_way
    with pytest.raises(TimeoutError):
        make().drop(0)
