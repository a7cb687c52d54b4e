"""Which ranks hang, as their agents see them, and what it says of one that is ended for that."""

import dataclasses
import os
import threading
from types import SimpleNamespace

import pytest
from on_demand import on_demand
from test_host_core import running

from fabric_train.agent.hang_watch import MORE_PATIENT, MOST_SEEN_S, HangWatch
from fabric_train.agent.hangs import STANDS, WAITS, Stillness, hung
from fabric_train.messages import progress_memory
from fabric_train.messages.progress_memory import Finished, ProgressMemory
from fabric_train.rank import heartbeat
from fabric_train.rank.heartbeat import Heartbeat, Pauses
from fabric_train.rank.pulse import Pulse

progress = on_demand("fabric_train.rank.progress", needs="torch")
WORKS, IN_COLLECTIVE = Finished(7, 30, alone_since=5), Finished(7, 30)
STOPPED = Finished(7, 30, stopped=True)


class Watched:
    """Looks at one process once a second. A live one beats."""

    def __init__(self, hang_s=10.0, frozen_s=5.0):
        self.watch, self.now, self.beats = HangWatch(hang_s, frozen_s), 100.0, 0
        self.seen = Stillness()

    def look(self, done, times=1, every_s=1.0, *, beats=True):
        for _ in range(times):
            self.now += every_s
            self.beats += bool(beats)
            one = dataclasses.replace(done, beat=0 if beats is None else 1 + self.beats)
            self.seen = self.watch.look("p0", one, self.now)
        return self.seen.still


def test_one_that_works_by_itself_stands_after_the_limit():
    watched = Watched()
    assert watched.look(WORKS, 10) == ""
    assert watched.look(WORKS) == STANDS
    assert watched.look(WORKS, 100) == STANDS
    assert not watched.seen.frozen
    assert watched.seen.why == (
        "hangs: it works without a collective, for 10 s already, and the others wait"
    )


def test_one_in_a_collective_waits_after_half_of_it_and_never_stands():
    watched = Watched()
    assert watched.look(IN_COLLECTIVE, 5) == ""
    assert watched.look(IN_COLLECTIVE, 1000) == WAITS


@pytest.mark.parametrize("done", [WORKS, IN_COLLECTIVE])
def test_one_whose_interpreter_is_held_is_frozen_whatever_it_does(done):
    watched = Watched(1000.0)
    watched.look(done, 3)
    assert watched.look(done, 4, beats=False) == ""
    assert watched.look(done, 1, beats=False) == STANDS
    assert watched.seen.frozen
    assert "runs no Python, for a call holds the interpreter's lock (GIL), for 5 s" in (
        watched.seen.why
    )
    assert watched.look(done) == "", "it goes on"


@pytest.mark.parametrize("beats", [False, None])
def test_one_that_a_signal_stops_is_frozen_also_in_a_pause_and_before_its_first_step(beats):
    for paused in (0, 9):
        watched = Watched()
        done = dataclasses.replace(STOPPED, paused=paused)
        watched.look(done, 5, beats=beats)
        assert not watched.seen.frozen
        watched.look(done, 1, beats=beats)
        assert watched.seen.frozen
        assert watched.seen.why == "hangs: it is stopped by a signal, for 5 s already"


def test_a_long_call_before_the_first_step_and_in_a_pause_is_no_hang():
    watched = Watched()
    assert watched.look(Finished(0, 0), 1000, beats=None) == WAITS, "it has no heartbeat yet"
    assert not watched.seen.frozen
    watched = Watched()
    assert watched.look(dataclasses.replace(WORKS, paused=9), 1000, beats=False) == ""
    assert watched.look(dataclasses.replace(WORKS, paused=0), 5) == "", "it is over"


def test_one_that_is_held_in_a_collective_does_not_count_as_one_that_waits():
    watched = Watched(frozen_s=0.0)
    assert watched.look(IN_COLLECTIVE, 20, beats=False) == ""
    assert watched.look(IN_COLLECTIVE) == WAITS


def test_the_longest_step_of_any_rank_of_the_host_makes_it_patient():
    watch = HangWatch()
    assert watch.silent_s(7) == 30.0
    watch.look("p0", Finished(7, 30, longest_s=2.0), 1.0)
    assert watch.silent_s(7) == 30.0
    watch.look("p1", Finished(7, 30, longest_s=12.0), 1.0)
    watch.forget("p1")
    assert watch.silent_s(7) == 120.0


def test_a_step_at_which_one_was_ended_for_its_silence_may_be_the_scripts_own():
    watch, silent = HangWatch(), Stillness(STANDS)

    def end(process, step, seen):
        watch.look(process, Finished(step, 30, alone_since=5), 1.0)
        watch.ended(process, seen)

    watch.ended("p9", silent)
    end("p0", 7, Stillness(STANDS, frozen=True))
    end("p0", 7, Stillness())
    assert watch.silent_s(7) == 30.0
    end("p0", 7, silent)
    assert watch.silent_s(7) == 30.0 * MORE_PATIENT
    assert watch.silent_s(8) == 30.0
    end("p4", 7, silent)
    assert watch.silent_s(7) == 30.0 * MORE_PATIENT**2
    end("p4", 9, silent)
    assert (watch.silent_s(7), watch.silent_s(9)) == (30.0, 30.0 * MORE_PATIENT)


@pytest.mark.parametrize(
    "other", [Finished(8, 30, alone_since=5), Finished(7, 31, alone_since=5), IN_COLLECTIVE,
              Finished(7, 30, alone_since=6)],
)  # fmt: skip
def test_whatever_it_does_is_a_sign_of_life(other):
    watched = Watched()
    watched.look(WORKS, 10)
    assert watched.look(other) == ""
    assert watched.look(WORKS, 10) == ""
    assert watched.look(WORKS) == STANDS


def test_a_process_that_a_debugger_holds_for_a_while_and_goes_on_began_anew():
    watched = Watched()
    watched.look(STOPPED, 4, beats=False)
    watched.look(IN_COLLECTIVE)
    assert watched.look(STOPPED, 5, beats=False) == ""


def test_time_in_which_the_agent_was_stopped_itself_is_not_counted():
    watched = Watched()
    watched.look(WORKS)
    assert watched.look(WORKS, every_s=3600.0) == "", "a job that a scheduler had suspended"
    assert watched.look(WORKS, every_s=60.0, times=3) == ""
    assert watched.look(WORKS, 1) == "", f"{4 * MOST_SEEN_S + 1} of 10 s"
    assert watched.look(WORKS) == STANDS
    watched = Watched()
    watched.look(WORKS)
    watched.look(WORKS, every_s=3600.0, times=2, beats=False)
    assert not watched.seen.frozen


def test_without_a_limit_and_after_an_end_nothing_is_said():
    assert Watched(0.0).look(WORKS, 10_000) == ""
    assert Watched(0.0).look(IN_COLLECTIVE, 10_000) == ""
    assert Watched(0.0).look(STOPPED, 10_000, beats=False) == ""
    watched = Watched()
    watched.look(WORKS, 10)
    watched.watch.forget("p0")
    watched.watch.forget("p0")
    assert watched.look(WORKS) == ""


FROZEN, SILENT = Stillness(STANDS, frozen=True), Stillness(STANDS)
LIVES, WAIT = Stillness(), Stillness(WAITS)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([FROZEN, LIVES, LIVES, LIVES], {0}),
        ([FROZEN, FROZEN, LIVES, LIVES], {0, 1}),
        ([FROZEN, FROZEN, FROZEN, LIVES], set()),
        ([FROZEN] * 4, set()),
        ([FROZEN, LIVES], {0}),
        ([FROZEN], set()),
        ([SILENT, WAIT, WAIT, LIVES], {0}),
        ([SILENT, FROZEN, WAIT, WAIT], {0, 1}),
        ([SILENT, WAIT, LIVES, LIVES], set()),
        ([SILENT] * 4, set()),
        ([WAIT] * 4, set()),
    ],
)
def test_a_frozen_rank_hangs_while_most_live_and_a_silent_one_while_most_wait(seen, expected):
    """A scheduler that stops a job stops all of its ranks, and ranks evaluate at the same time."""
    assert hung(dict(enumerate(seen)), len(seen)) == expected


def test_ranks_of_which_nothing_is_known_speak_for_nobody():
    assert hung({0: FROZEN, 1: LIVES}, 4) == set()
    assert hung({0: FROZEN, 1: LIVES, 2: LIVES}, 4) == {0}


def test_a_pulse_beats_only_between_gates_and_outside_of_collectives():
    told = []
    pulse = Pulse(told.append)
    pulse.started()
    pulse.ended(1)
    assert not told, "a rehearsal, and a spare"
    pulse.works(2)
    pulse.started()
    pulse.started()
    pulse.ended(3)
    assert told == [2, 0, 0], "the second one is under way"
    pulse.ended(4)
    pulse.ended(5)
    assert told == [2, 0, 0, 4]
    pulse.started()
    pulse.waits()
    pulse.ended(6)
    assert told[4:] == [0, 0], "the gate, or a recovery"
    pulse.works(7)
    pulse.ended(8)
    assert told[6:] == [7], "that was of the step before"


def test_what_ends_in_the_gate_wakes_no_pulse():
    told = []
    pulse = Pulse(told.append)
    pulse.works(1)
    pulse.started()
    pulse.waits()
    pulse.ended(2)
    assert told == [1, 0, 0]


def test_the_agent_reads_since_when_a_process_works_by_itself():
    memory = progress_memory.create("p0")
    process = ProgressMemory(str(os.dup(memory)))
    process.alone(1 << 50)
    process.stepped(3)
    assert progress_memory.read(memory) == Finished(3, 0, alone_since=1 << 50)
    process.alone(0)
    process.beat(7)
    process.paused(8)
    process.longest(1_500_000_000)
    assert progress_memory.read(memory) == Finished(3, 0, beat=7, paused=8, longest_s=1.5)
    os.close(memory)


def test_an_agent_of_the_version_before_has_less_room():
    memory = os.memfd_create("small")
    os.ftruncate(memory, 16)
    process = ProgressMemory(str(os.dup(memory)))
    process.alone(7)
    process.collective_ended()
    process.beat(7)
    assert os.pread(memory, 64, 0) == bytes(8) + (1).to_bytes(8, "little")
    os.close(memory)


@pytest.fixture
def memory():
    return SimpleNamespace(beats=[], pauses=[])


def test_a_heartbeat_begins_once_and_goes_on(memory, monkeypatch):
    beaten = threading.Semaphore(0)
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.001)
    memory.beat = lambda now: (memory.beats.append(now), beaten.release())
    one = Heartbeat(memory)
    one.start()
    one.start()
    for _ in range(3):
        assert beaten.acquire(timeout=60)
    assert memory.beats == sorted(memory.beats)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("fabric-beat") == 1
    monkeypatch.setattr(heartbeat, "BEAT_S", 3600.0)


def test_pauses_may_be_nested_and_end_with_the_outer_one(memory):
    memory.paused = memory.pauses.append
    pauses = Pauses(memory)
    with pauses.pause("evaluation"), pauses.pause():
        assert len(memory.pauses) == 1
        assert memory.pauses[0] > 0
    assert memory.pauses[1:] == [0]
    with pytest.raises(ZeroDivisionError), pauses.pause("checkpoint"):
        raise ZeroDivisionError
    assert memory.pauses[3:] == [0]
    assert pauses.take_s() > 0
    assert pauses.take_s() == 0


def stands(host):
    one = host.core.document().processes[0]
    assert one.process == "a/i1/p0"
    return one.still


def watched_host(done):
    host = running()
    for second in range(60):
        one = dataclasses.replace(done, beat=1 + second)
        host.core.progressed("a/i1/p0", one, 1000.0 + second)
    return host


def test_a_rank_that_hangs_is_ended_with_that_reason():
    host = watched_host(WORKS)
    assert stands(host) == STANDS
    host.order("running", host.core.running, reason="as before", kill=["a/i1/p0"])
    assert host.killed == ["a/i1/p0"]
    host.exit("a/i1/p0")
    one = host.core.document().processes[0]
    assert (one.state, one.still) == ("ended", "")
    assert one.reason == (
        "hangs: it works without a collective, for 30 s already, and the others wait"
    )


def test_a_rank_that_is_stopped_is_said_to_be_frozen():
    host = watched_host(STOPPED)
    for second in range(8):
        host.core.progressed("a/i1/p0", STOPPED, 1060.0 + second)
    one = host.core.document().processes[0]
    assert (one.still, one.frozen) == (STANDS, True)


def test_who_has_finished_its_loop_does_not_stand():
    host = watched_host(WORKS)
    host.core.finished("a/i1/p0", 50)
    host.core.progressed("a/i1/p0", WORKS, 1060.0)
    assert stands(host) == ""
    assert host.core.ranks_here == ["a/i1/p0"]


def test_who_waits_is_ended_for_what_the_order_says():
    host = watched_host(IN_COLLECTIVE)
    assert stands(host) == WAITS
    host.order("running", host.core.running, reason="no answer", kill=["a/i1/p0"])
    host.exit("a/i1/p0")
    assert host.core.document().processes[0].reason == "no answer"
