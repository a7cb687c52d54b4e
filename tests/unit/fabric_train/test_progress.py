"""A rank's windows of own times on their way from the gate into the memory of its agent."""

import os
from types import SimpleNamespace

import pytest
from on_demand import on_demand

from fabric_train.messages import progress_memory, step_window
from fabric_train.messages.step_window import BLOCKS

progress = on_demand("fabric_train.rank.progress", needs="torch")
GENERATION = 4


class Inner:
    """The votes of a generation in which this rank is alone, or others end a window, too."""

    generation = GENERATION

    def __init__(self):
        self.others_end, self.fails = False, False

    def vote(self, number, digest, *, ends):
        if self.fails:
            raise RuntimeError("a peer is lost")
        return number, True, ends or self.others_end


@pytest.fixture
def memory(monkeypatch):
    descriptor = progress_memory.create("p0")
    monkeypatch.setenv(progress_memory.VARIABLE, str(os.dup(descriptor)))
    monkeypatch.setattr(step_window, "WINDOW_S", 0.0)  # a window is full with its last block
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def rank(memory):
    made = progress.Progress(SimpleNamespace(send=lambda _message: None))
    made.inner = Inner()
    made.group = SimpleNamespace(size=lambda: 4)
    made.watch(made.group)
    return made


def step(rank, number):
    """The attempt after ``number`` steps, with a collective in it."""
    rank.group.on_start([])
    rank.group.on_end()
    rank.group.on_settle()
    answer = rank.vote(rank.inner, 7, None, number)
    rank.committed(GENERATION, number + 1)
    return answer


def window(memory):
    return progress_memory.read(memory).window


def test_the_first_step_only_begins_a_window_and_each_has_a_step_for_each_block(rank, memory):
    for number in range(1 + BLOCKS - 1):
        assert step(rank, number) == (7, True)
        assert window(memory) is None
    step(rank, BLOCKS)
    found = window(memory)
    assert (found.generation, found.last, found.steps) == (GENERATION, 1 + BLOCKS, BLOCKS)
    assert found.is_sound
    assert BLOCKS * max(found.blocks_ns) > 0
    assert sum(found.blocks_ns) <= found.wall_ns


def test_the_agent_sees_since_when_a_rank_works_by_itself(rank, memory):
    def alone():
        return progress_memory.read(memory).alone_since

    assert alone() == 0
    before = progress.time.monotonic_ns()
    step(rank, 1)
    assert before <= (began := alone()) <= progress.time.monotonic_ns()
    rank.group.on_start([])
    assert alone() == 0
    rank.group.on_end()
    assert alone() > began
    rank.group.on_settle()
    assert alone() == 0, "it waits in the gate"
    rank.vote(rank.inner, 7, None, 2)
    rank.recovers()
    assert alone() == 0, "it waits for a generation"
    rank.resumed()
    assert alone() > began


def test_others_end_a_window_for_all(rank, memory, monkeypatch):
    monkeypatch.setattr(step_window, "WINDOW_S", 1e9)
    rank.watch(rank.group)
    for number in range(20):
        step(rank, number)
    assert window(memory) is None
    rank.inner.others_end = True
    step(rank, 20)
    assert (window(memory).last, window(memory).steps) == (21, 20)


def test_a_recovery_begins_anew(rank, memory):
    for number in range(BLOCKS):
        step(rank, number)
    rank.inner.fails = True
    with pytest.raises(RuntimeError):
        step(rank, BLOCKS)
    rank.inner.fails = False
    rank.resumed()
    for number in range(BLOCKS, 2 * BLOCKS):
        step(rank, number)
        assert window(memory) is None, "steps of two generations are never one window"
    step(rank, 2 * BLOCKS)
    assert (window(memory).last, window(memory).steps) == (2 * BLOCKS + 1, BLOCKS)


def test_a_collective_ends_though_the_training_thread_has(rank, monkeypatch):
    """Its processor time is not there any more."""
    nobody = (~(1 << 22) << 3) | 6  # clock_getcpuclockid(3) of a thread that no kernel has
    monkeypatch.setattr(progress.time, "pthread_getcpuclockid", lambda _thread: nobody)
    monkeypatch.delenv(progress_memory.VARIABLE)
    with pytest.raises(OSError, match="Invalid argument"):
        progress.time.clock_gettime(nobody)
    ended = progress.Progress(SimpleNamespace(send=lambda _message: None))
    ended.inner, ended.group = rank.inner, rank.group
    ended.watch(ended.group)
    for number in range(2):
        assert step(ended, number) == (7, True)
