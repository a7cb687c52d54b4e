"""An error of our own in one job: that job is held and named, the others are decided on."""

import dataclasses

import pytest
from job_world import JOB, TICK_S, World
from test_partitions import run

from compute.decide.decider import Decider
from compute.decide.effects import FenceIssued, JobState, Order, Record
from compute.decide.faults import HOLD_S
from telemetry.messages.documents import HostJob

OTHER_USER = 4711


def second_job(world, user=OTHER_USER):
    """The same documents, said by another user of each host but under another name."""
    decider = world.deciders["c0"]
    for name, host in ((one.name, one) for one in world.hosts.values() if one.up):
        document = dataclasses.replace(host.document(world.now), job="other")
        news = HostJob(job="other", incarnation=document.incarnation, uid=user)
        decider.host_job(name, "other", news, world.now, document=document)
    return decider


def named(effects, kind):
    return [one for one in effects if isinstance(one, Record) and one.kind == kind]


@pytest.fixture
def broken(monkeypatch):
    """Names of jobs in which an error happens, and in which part."""
    jobs = {}

    def breakable(part):
        real = getattr(Decider, part)

        def maybe_fails(self, *arguments):
            job = next(one for one in arguments if hasattr(one, "core"))
            if jobs.get(job.core.job) == part:
                raise ZeroDivisionError("injected")
            return real(self, *arguments)

        monkeypatch.setattr(Decider, part, maybe_fails)

    for part in ("_judge", "_decision", "_state"):
        breakable(part)
    return jobs


@pytest.mark.parametrize("part", ["_judge", "_decision", "_state"])
def test_another_job_is_taken_over_as_ever_and_the_broken_one_is_said_once(world, broken, part):
    decider = second_job(world)
    effects = decider.decide(world.now)
    broken["other"] = part
    decider._jobs["other"].judged = False
    world.hosts["h0"].up = False
    before = world.progress[0]
    told = []
    real = decider.decide

    def decide(now):
        found = real(now)
        told.extend(found)
        return found

    decider.decide = decide
    ticks = 0
    while world.progress[0] <= before:
        run(world, TICK_S)
        second_job(world)
        ticks += 1
        assert ticks < 60 / TICK_S, "the other job's error keeps this one from its takeover"
    assert world.violations == []
    run(world, 3 * HOLD_S)
    assert decider.faults >= 3, "it is tried again"
    [record] = named(told, "decision_failed")
    assert record.fields["job"] == "other"
    assert record.fields["error"] == "ZeroDivisionError: injected"
    assert record.fields["where"].startswith("test_faults.py:")
    states = [one.state for one in told if isinstance(one, JobState) and one.job == "other"]
    assert states[-1].phase == "held"
    assert "ZeroDivisionError: injected, in test_faults.py" in states[-1].reason
    assert effects is not told


def test_what_the_job_wanted_last_stands_and_it_goes_on_when_the_error_is_over(world, broken):
    decider = second_job(world)
    decider.decide(world.now)
    before = decider._jobs["other"].core.generation
    broken["other"] = "_decision"
    decider._jobs["other"].news = decider._news = True
    effects = decider.decide(world.now)
    assert named(effects, "decision_failed")
    assert not [one for one in effects if isinstance(one, Order)], "nothing is taken back"
    broken.clear()
    second_job(world)
    assert not [one for one in decider.decide(world.now + 1) if isinstance(one, JobState)]
    wake = decider.wake_at()
    assert wake is not None
    effects = decider.decide(world.now + HOLD_S)
    [state] = [one.state for one in effects if isinstance(one, JobState) and one.job == "other"]
    assert state.phase != "held"
    assert decider._jobs["other"].core.generation == before, "learned from its hosts, as at a start"


def test_a_fence_that_was_issued_before_the_error_is_stored(world, broken):
    broken[JOB] = "_state"
    decider = world.deciders["c0"]
    job = decider._jobs[JOB]
    job.news = decider._news = True
    real = job.core.decide

    def fences(*arguments):
        decision = real(*arguments)
        decision.fence["h1"] = "injected"
        return decision

    job.core.decide = fences
    effects = decider.decide(world.now)
    assert [one.fence.host for one in effects if isinstance(one, FenceIssued)] == ["h1"]
    assert named(effects, "decision_failed")


def test_what_is_gone_is_forgotten():
    world = World(3, computes=1)
    decider = world.deciders["c0"]
    with decider._faults.guard("x", 0.0, []):
        raise ValueError
    assert decider._faults.held_until("x", 1.0) == HOLD_S
    assert decider._faults.held_until("x", HOLD_S) is None
    decider._faults._last["x"] = None
    decider._faults.keep([])
    assert decider._faults.held_until("x", 1.0) is None
