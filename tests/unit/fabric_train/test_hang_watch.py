"""Which ranks stand, as their agent sees them, and what it says of one that is ended for that."""

import os

import pytest
from test_host_core import running

from fabric_train.host.hang_watch import MOST_SEEN_S, HangWatch
from fabric_train.messages import progress_memory
from fabric_train.messages.documents import STANDS, WAITS
from fabric_train.messages.progress_memory import Finished, ProgressMemory
from fabric_train.rank.pulse import Pulse

WORKS, IN_COLLECTIVE = Finished(7, 30, alone_since=5), Finished(7, 30)
STOPPED = Finished(7, 30, stopped=True)


class Watched:
    """Looks at one process once a second."""

    def __init__(self, hang_s=10.0):
        self.watch, self.now = HangWatch(hang_s), 100.0

    def look(self, done, times=1, every_s=1.0):
        for _ in range(times):
            self.now += every_s
            said = self.watch.look("p0", done, self.now)
        return said[0]


@pytest.mark.parametrize("done", [WORKS, STOPPED, Finished(7, 30, alone_since=5, stopped=True)])
def test_one_that_works_by_itself_or_is_stopped_stands_after_the_limit(done):
    watched = Watched()
    assert watched.look(done, 10) == ""
    assert watched.look(done) == STANDS
    assert watched.look(done, 100) == STANDS


def test_one_in_a_collective_waits_after_half_of_it_and_never_stands():
    watched = Watched()
    assert watched.look(IN_COLLECTIVE, 5) == ""
    assert watched.look(IN_COLLECTIVE, 1000) == WAITS


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
    watched.look(STOPPED, 9)
    watched.look(IN_COLLECTIVE)
    assert watched.look(STOPPED, 10) == ""


def test_time_in_which_the_agent_was_stopped_itself_is_not_counted():
    watched = Watched()
    watched.look(WORKS)
    assert watched.look(WORKS, every_s=3600.0) == "", "a job that a scheduler had suspended"
    assert watched.look(WORKS, every_s=60.0, times=3) == ""
    assert watched.look(WORKS, 1) == "", f"{4 * MOST_SEEN_S + 1} of 10 s"
    assert watched.look(WORKS) == STANDS


def test_without_a_limit_and_after_an_end_nothing_is_said():
    assert Watched(0.0).look(WORKS, 10_000) == ""
    assert Watched(0.0).look(IN_COLLECTIVE, 10_000) == ""
    watched = Watched()
    watched.look(WORKS, 10)
    watched.watch.forget("p0")
    watched.watch.forget("p0")
    assert watched.look(WORKS) == ""


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
    assert progress_memory.read(memory).alone_since == 0
    os.close(memory)


def test_an_agent_of_the_version_before_has_less_room():
    memory = os.memfd_create("small")
    os.ftruncate(memory, 16)
    process = ProgressMemory(str(os.dup(memory)))
    process.alone(7)
    process.collective_ended()
    assert os.pread(memory, 64, 0) == bytes(8) + (1).to_bytes(8, "little")
    os.close(memory)


def stands(host):
    one = host.core.document().processes[0]
    assert one.process == "a/i1/p0"
    return one.still


def watched_host(done):
    host = running()
    for second in range(700):
        host.core.progressed("a/i1/p0", done, 1000.0 + second)
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
        "hangs: it works without a collective, for 600 s already, and the others wait"
    )


def test_who_has_finished_its_loop_does_not_stand():
    host = watched_host(WORKS)
    host.core.finished("a/i1/p0", 50)
    host.core.progressed("a/i1/p0", WORKS, 1700.0)
    assert stands(host) == ""
    assert host.core.ranks_here == ["a/i1/p0"]


def test_who_waits_is_ended_for_what_the_order_says():
    host = watched_host(IN_COLLECTIVE)
    assert stands(host) == WAITS
    host.order("running", host.core.running, reason="no answer", kill=["a/i1/p0"])
    host.exit("a/i1/p0")
    assert host.core.document().processes[0].reason == "no answer"
