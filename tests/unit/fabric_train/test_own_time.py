"""What a rank counts as its own time, in which windows, and how its agent reads them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.messages import progress_memory
from fabric_train.messages.progress_memory import Finished, ProgressMemory
from fabric_train.messages.step_window import (
    BLOCKS,
    LARGE_WORLD,
    StepWindow,
    patience_s,
    window_s,
)
from fabric_train.rank.own_time import LONG_STEP, OwnTime, WindowLog

WINDOW = StepWindow(3, 80, 40, 12_000_000_000, [1_000_000 + i for i in range(BLOCKS)])


def step(*events, at=100.0):
    """Own time of a step: (seconds since its begin, what) each; the thread uses a core meanwhile
    unless ``what`` begins with ``waits``.
    """
    own = OwnTime()
    own.gate_left(at)
    used, then = 0.0, 0.0
    for seconds, what in events:
        waits = what.startswith("waits ")
        used += 0.0 if waits else seconds - then
        then, now = seconds, at + seconds
        match what.removeprefix("waits "):
            case "start":
                own.started(now, used)
            case "end":
                own.ended(now, used)
            case "gate":
                return own.gate_reached(now, used)
    raise AssertionError("no gate")


@pytest.mark.parametrize(
    ("events", "own"),
    [
        ([(3.0, "gate")], 3.0),
        ([(3.0, "waits gate")], 3.0),  # it sleeps, or its host is slow: that is its own
        ([(1.0, "start"), (5.0, "waits end"), (5.5, "gate")], 1.5),
        ([(1.0, "start"), (4.0, "end"), (5.0, "gate")], 5.0),  # it works all the while
        ([(1.0, "start"), (2.0, "start"), (3.0, "end"), (9.0, "waits end"), (9.0, "gate")], 3.0),
        ([(1.0, "start"), (2.0, "waits end"), (3.0, "start"), (7.0, "waits end"), (8.0, "gate")],
         3.0),
        ([(1.0, "start"), (3.0, "gate")], 3.0),  # what it has begun is awaited behind the gate
    ],
)  # fmt: skip
def test_what_a_rank_waits_for_in_collectives_is_not_its_own(events, own):
    assert step(*events) == pytest.approx(own)


def test_a_step_is_measured_whole_or_not_at_all():
    own = OwnTime()
    own.started(1.0, 1.0)
    own.ended(2.0, 1.0)
    assert own.gate_reached(3.0, 1.0) is None, "it has not begun at a gate"
    own.gate_left(4.0)
    own.reset()
    assert own.gate_reached(5.0, 1.0) is None, "another generation has begun meanwhile"


def test_the_end_of_a_collective_of_the_step_before_counts_for_nothing():
    own = OwnTime()
    own.gate_left(0.0)
    own.started(1.0, 1.0)
    assert own.gate_reached(2.0, 2.0) == 2.0
    own.ended(2.5, 2.5)
    own.gate_left(3.0)
    own.ended(3.5, 2.5)
    assert own.gate_reached(4.0, 3.0) == 1.0


def run(log, steps, *, wall, own=lambda step: 0.01, first=0, now=0.0, world_ends=None):
    """Windows of these steps; ``wall(step)`` seconds each."""
    found = []
    log.add(None, 1, first, now, ends=False)
    for number in range(first + 1, first + steps + 1):
        now += wall(number)
        ends = log.wants_end(now) if world_ends is None else number in world_ends
        found.append(log.add(own(number), 1, number, now, ends=ends))
    return [one for one in found if one is not None]


def test_a_window_ends_with_its_time_and_has_all_steps_in_blocks_that_follow_each_other():
    windows = run(WindowLog(4), 300, wall=lambda _: 0.125, own=lambda step: step / 1000)
    assert [(one.last, one.steps) for one in windows] == [(96, 96), (192, 96), (288, 96)]
    assert windows[0].wall_ns == pytest.approx(12e9)
    firsts = [one.blocks_ns[0] for one in windows]
    assert firsts == pytest.approx([5.29e6, 102.4e6, 198.5e6], rel=0.01), "the geometric mean"
    assert windows[0].blocks_ns == sorted(windows[0].blocks_ns)
    assert all(one.is_sound for one in windows)


def test_a_window_has_at_least_as_many_steps_as_blocks():
    windows = run(WindowLog(4), 40, wall=lambda _: 9.0)
    assert [one.steps for one in windows] == [BLOCKS] * 5


def test_a_long_step_does_not_fill_a_window():
    windows = run(WindowLog(4), 400, wall=lambda step: 30.0 if step % 200 == 150 else 0.125)
    less = int(LONG_STEP) - 1
    assert [one.steps for one in windows] == [96, 96 - less, 96, 96 - less]


def test_large_jobs_have_long_windows_and_documents_may_wait_a_third_of_one():
    assert window_s(LARGE_WORLD) > window_s(LARGE_WORLD - 1)
    assert patience_s(8) == window_s(8) / 3
    assert len(run(WindowLog(LARGE_WORLD), 400, wall=lambda _: 0.1)) == 1


def test_ranks_whose_windows_end_together_compare_the_same_steps():
    """A step without a measure begins a window anew, until others end theirs."""
    log = WindowLog(4)
    assert run(log, 50, wall=lambda _: 0.1, world_ends={20, 45}, first=7)[0].steps == 13
    log.reset()
    assert run(log, 10, wall=lambda _: 0.1, world_ends={104}, first=100) == []


# What the process writes, and its agent reads.


@pytest.fixture
def memory():
    descriptor = progress_memory.create("p0")
    yield descriptor
    os.close(descriptor)


def test_the_agent_reads_the_newest_window(memory):
    mine = ProgressMemory(str(os.dup(memory)))
    mine.stepped(7)
    assert progress_memory.read(memory) == Finished(7, 0, None)
    mine.measured(WINDOW)
    assert progress_memory.read(memory) == Finished(7, 0, WINDOW)
    newer = StepWindow(3, 120, 40, 5, [7] * BLOCKS)
    mine.measured(newer)
    assert progress_memory.read(memory).window == newer


@given(st.integers(24, 24 + 8 * (4 + BLOCKS) + 3), st.integers(1, 255))
def test_a_window_that_is_half_written_is_none(place, change):
    descriptor = progress_memory.create("p0")
    try:
        ProgressMemory(str(os.dup(descriptor))).measured(WINDOW)
        byte = os.pread(descriptor, 1, place)[0]
        os.pwrite(descriptor, bytes([byte ^ change]), place)
        assert progress_memory.read(descriptor).window is None
    finally:
        os.close(descriptor)


def test_an_agent_of_the_version_before_has_no_room_for_windows(memory):
    os.ftruncate(memory, 16)
    mine = ProgressMemory(str(os.dup(memory)))
    mine.stepped(7)
    mine.measured(WINDOW)
    assert os.fstat(memory).st_size == 16
    assert progress_memory.read(memory) == Finished(7, 0, None)


def test_without_an_agent_nothing_is_written():
    ProgressMemory("").measured(WINDOW)
