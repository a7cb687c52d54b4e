"""What a killed process has left of its rank-local states."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.messages import state_memory
from fabric_train.messages.frames import MAX_BODY
from fabric_train.messages.state_memory import KeptState


@pytest.fixture
def memory():
    descriptor = state_memory.create("p0")
    yield descriptor
    os.close(descriptor)


def by_step(memory):
    return {one.step: one for one in state_memory.read(memory)}


def test_the_last_three_steps_are_there(memory):
    assert by_step(memory) == {}
    states = [KeptState(2, step, b"%d" % step * 5000) for step in range(6)]
    for one in states:
        state_memory.write(memory, one)
    assert by_step(memory) == {3: states[3], 4: states[4], 5: states[5]}


def test_a_later_state_of_a_step_replaces_the_earlier_one(memory):
    state_memory.write(memory, KeptState(2, 4, b"early" * 1000))
    state_memory.write(memory, KeptState(2, 4, b"changed"))
    assert by_step(memory) == {4: KeptState(2, 4, b"changed")}


def test_a_late_state_comes_after_that_of_the_gate_which_stays_until_it_is_whole(memory):
    gate, late = KeptState(2, 4, b"gate" * 2000), KeptState(2, 4, b"late" * 2000)
    state_memory.write(memory, gate)
    state_memory.write(memory, late, late=True)
    assert list(state_memory.read(memory)) == [gate, late]
    place = (4 % state_memory.STEPS + state_memory.STEPS) * 2 * MAX_BODY
    os.pwrite(memory, b"cut off", place + 100)
    assert list(state_memory.read(memory)) == [gate]


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 35, 36, 37, 4096, 9000])
def test_a_state_that_was_being_written_does_not_count_and_others_do(memory, cut):
    old, whole = KeptState(1, 4, bytes(range(256)) * 50), KeptState(1, 5, b"next")
    state_memory.write(memory, old)
    state_memory.write(memory, whole)
    other = state_memory.create("p1")
    state_memory.write(other, KeptState(1, 7, b"over it" * 3000))
    place = (7 % state_memory.STEPS) * 2 * MAX_BODY
    os.pwrite(memory, os.pread(other, cut, place), place)
    os.close(other)
    assert by_step(memory) == ({4: old, 5: whole} if cut <= 8 else {5: whole})


def test_a_state_that_is_too_large_is_refused(memory):
    with pytest.raises(ValueError, match=f"at most {MAX_BODY}"):
        state_memory.write(memory, KeptState(0, 1, bytes(MAX_BODY + 1)))
    assert by_step(memory) == {}


@given(st.lists(st.tuples(st.integers(0, 9000), st.binary(min_size=1, max_size=60)), max_size=5))
def test_whatever_a_process_has_written_there_is_read_as_a_whole_state_or_not_at_all(changes):
    memory = state_memory.create("p0")
    try:
        kept = KeptState(3, 6, b"body" * 2000)
        state_memory.write(memory, kept)
        for offset, data in changes:
            os.pwrite(memory, data, offset)
        found = list(state_memory.read(memory))
        untouched = os.pread(memory, 36, 0) and found == [kept]
        assert found in ([], [kept])
        assert untouched or changes
    finally:
        os.close(memory)
