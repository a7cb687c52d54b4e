"""A rank that ends before the job has state: all hosts begin anew, three times at most.

The agents' own cores, and the core of one job.
"""

import pytest

from compute.decide.decision import JobInput
from compute.decide.job import JobCore
from compute.decide.policy import Policy
from fabric_train.host.core import HostCore
from fabric_train.host.effects import Assign, Greet, Setup
from fabric_train.messages.documents import JobOrder, parse, to_data
from fabric_train.rules.coordinator import Kill, Spawn

HOSTS = ("h0", "h1", "h2")


class Job:
    """Two hosts with ranks and a spare one. A process joins at once, and is killed at once."""

    def __init__(self):
        self.core = JobCore("gpt", Policy())
        self.hosts = {
            host: HostCore(
                Setup("gpt", host, "i", 2, 1, 1, 0, "127.0.0.1:1", "127.0.0.1:2", "token")
            )
            for host in HOSTS
        }
        self.now = 0.0
        self.greeted = {}
        self.assigned = {}
        self.decision = None
        for host, core in self.hosts.items():
            self.perform(host, core.start())
        self.settle()

    def perform(self, host, effects):
        core = self.hosts[host]
        for effect in effects:
            match effect:
                case Spawn(process):
                    self.perform(host, core.joined(process, {"torch": "2.13"}))
                case Kill(process):
                    self.end(process, "killed by SIGKILL")
                case Greet(process, spare):
                    assert process not in self.greeted
                    self.greeted[process] = spare
                case Assign(process, generation):
                    self.assigned[process] = generation.number, generation.rank_of(process)

    def end(self, process, reason="exited with status 1"):
        host = process.partition("/")[0]
        core = self.hosts[host]
        self.greeted.pop(process, None)
        self.assigned.pop(process, None)
        self.perform(host, core.lost(process, reason, self.now))

    def settle(self):
        """Documents and orders go back and forth until nothing changes."""
        for _ in range(12):
            self.now += 0.1
            documents = {host: core.document() for host, core in self.hosts.items()}
            self.decision = self.core.decide(JobInput(documents), self.now)
            for host, order in self.decision.orders.items():
                again = parse(JobOrder, to_data(order))
                self.perform(host, self.hosts[host].order("c0", again, self.now))

    def ranks(self):
        return {rank: process for process, (_, rank) in self.assigned.items() if rank is not None}


def test_all_begin_anew_with_new_processes():
    job = Job()
    before = set(job.greeted)
    assert len(before) == 3
    job.end(job.ranks()[1])
    job.settle()
    assert not before & set(job.greeted)
    assert job.decision.phase == "running"
    assert job.core.generation.number == 2
    assert not job.core.generation.formed
    assert {number for number, _ in job.assigned.values()} == {2}
    assert sorted(job.greeted.values()) == [False, False, True]
    assert {job.greeted[process] for process in job.ranks().values()} == {False}


def test_three_starts_are_enough():
    job = Job()
    for _ in range(2):
        job.end(job.ranks()[0])
        job.settle()
        assert job.decision.phase == "running"
    lost = job.ranks()[0]
    job.end(lost)
    job.settle()
    expected = f"rank 0: {lost} exited with status 1, before the job had state, 3 times"
    assert job.core.phase == "failed"
    assert job.decision.records == [] or expected in str(job.decision.records)
    assert job.decision.reason == expected


@pytest.mark.parametrize("committed", [1, 30])
def test_a_job_that_had_state_does_not_begin_anew(committed):
    job = Job()
    for process in job.ranks().values():
        core = job.hosts[process.partition("/")[0]]
        job.perform(process.partition("/")[0], core.protected(process, "L"))
        core.committed(process, 1, committed, job.now)
    job.settle()
    for process in list(job.ranks().values()):
        job.end(process)
    job.settle()
    assert job.core.phase == "failed"
    assert job.core.generation.number == 1


def test_an_order_to_begin_anew_that_comes_late_changes_nothing():
    job = Job()
    first = job.core.generation
    job.end(job.ranks()[1])
    job.settle()
    before = dict(job.assigned)
    late = JobOrder("i", "waiting", "the job starts again", first)
    for host, core in job.hosts.items():
        job.perform(host, core.order("c1", late, job.now))
    job.settle()
    assert job.assigned == before
