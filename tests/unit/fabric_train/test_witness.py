"""While a host of a job is in question, a few agents say at a pace how far its ranks are."""

import os

import pytest
from test_host_core import generation, member, running

from fabric_train.host.witness import MOST_WITNESSES, is_witness
from fabric_train.messages import progress_memory
from fabric_train.messages.progress_memory import Finished, ProgressMemory

HOSTS = [f"h{i // 2}" for i in range(40)]  # two ranks each


def test_nobody_is_a_witness_while_all_are_heard():
    assert not any(is_witness(host, HOSTS, ()) for host in HOSTS)
    assert not any(is_witness(host, HOSTS, ["x"]) for host in HOSTS), "a host without ranks"


def test_the_first_that_are_heard_are_witnesses():
    silent = ["h0", "h3", "x"]
    witnesses = [host for host in dict.fromkeys(HOSTS) if is_witness(host, HOSTS, silent)]
    assert len(witnesses) == MOST_WITNESSES
    assert witnesses == ["h1", "h2", "h4", "h5", "h6", "h7", "h8", "h9"]


@pytest.fixture
def memory():
    descriptor = progress_memory.create("p0")
    yield descriptor
    os.close(descriptor)


def test_a_process_writes_how_far_it_is_and_its_agent_reads_it(memory):
    assert progress_memory.read(memory) == Finished(0, 0)
    mine = ProgressMemory(str(os.dup(memory)))
    mine.stepped(7)
    mine.collective_ended()
    mine.collective_ended()
    assert progress_memory.read(memory) == Finished(7, 2)


def test_a_process_that_cuts_its_memory_has_finished_nothing(memory):
    os.ftruncate(memory, 3)
    assert progress_memory.read(memory) == Finished(0, 0)


def test_without_an_agent_that_reads_nothing_is_written():
    mine = ProgressMemory("")
    mine.stepped(7)
    mine.collective_ended()


def test_it_bears_witness_while_a_host_of_the_job_is_in_question():
    host = running()
    assert not host.core.bears_witness(())
    assert not host.core.bears_witness(["c"]), "a host without ranks"
    assert host.core.bears_witness(["b"])
    assert not host.core.bears_witness(["a"]), "its own probes say that it is silent"
    host.core.fence("b", "i0")
    assert not host.core.bears_witness(()), "a former life"
    host.core.fence("b", "i1")
    assert host.core.bears_witness(())
    host.run(generation(2, ["a/i1/p0", "c/i1/p0"], members=[member("a"), member("c")]))
    assert not host.core.bears_witness(())


def test_it_bears_witness_while_a_generation_that_it_has_accepted_does_not_run():
    """One of its hosts may have lost the broker: whether the job steps tells."""
    host = running()
    host.order("proposed", generation(2))
    assert host.core.bears_witness(())
    before = host.core.document()
    host.core.looked()
    assert host.core.document().looks == before.looks + 1
    host.order("running", generation(2))
    assert not host.core.bears_witness(())
