"""Places of ranks that break: one rank moves, the others of its host stay."""

from dataclasses import replace

import pytest
from job_world import World
from test_partitions import run

from compute.decide.decision import JobInput
from compute.decide.effects import JobState
from compute.decide.job import JobCore
from compute.decide.placement import PlacementError, next_generation
from compute.decide.policy import Policy
from compute.decide.slots import BrokenSlots
from compute.decide.suspects import LEFT_OUT
from fabric_train.messages.documents import AgentDocument, JobGeneration, ProcessState

HOSTS = ["a", "a", "b", "b"]


def generation(number, *slots):
    return JobGeneration(number, number - 1, list(slots), HOSTS, [], [], [], "", formed=True)


def document(host, *processes):
    return AgentDocument("j", host, "i", 2, 1, 2, f"{host}:1", f"{host}:2", "t", list(processes))


def warm(name):
    return ProcessState(name, "warm", layout="L", committed=1)


def test_two_ends_without_a_step_leave_a_place_out():
    slots = BrokenSlots()
    first, second = generation(1, "p0", "p1", "p2", "p3"), generation(2, "p0", "p4", "p2", "p3")
    slots.update(first, {1: "p1 was killed"}, {"p1"})
    slots.update(first, {1: "p1 was killed"}, {"p1"})
    assert not slots.left_out, "the same end"
    slots.update(second, {1: "p4 was killed"}, {"p0"})
    why = "its process ended 2 times without a step, the last: p4 was killed"
    assert slots.left_out == {("a", 1): why}
    slots.clear("b")
    assert slots.left_out
    slots.clear("a")
    assert not slots.left_out
    assert [one.kind for one in slots.take_records()] == ["slot_left_out", "slot_cleared"]
    assert not slots.take_records()


def test_ends_of_processes_that_have_made_a_step_do_not_add_up():
    slots = BrokenSlots()
    for number in range(1, 9):
        ran = generation(number, "p0", f"q{number}", "p2", "p3")
        slots.update(ran, {1: "killed"}, {f"q{number}"})
    assert not slots.left_out


def test_a_rank_whose_place_is_left_out_moves_and_the_others_stay():
    previous = generation(3, "a/p0", "a/p1", "b/p0", "b/p1")
    ended = ProcessState("a/p1", "ended", reason="was killed")
    hosts = {
        "a": document("a", warm("a/p0"), ended, warm("a/p9")),
        "b": document("b", warm("b/p0"), warm("b/p1")),
        "c": document("c", warm("c/p0"), warm("c/p1")),
    }
    stays = next_generation(previous, 4, hosts, "L", "")
    assert stays.slots == ["a/p0", "a/p9", "b/p0", "b/p1"]
    moves = next_generation(previous, 4, hosts, "L", "", left_out=[("a", 1)])
    assert moves.slots == ["a/p0", "c/p0", "b/p0", "b/p1"]
    assert moves.hosts == ["a", "c", "b", "b"]
    other = next_generation(previous, 4, hosts, "L", "", left_out=[("a", 0)])
    assert other.slots == stays.slots, "that is rank 0's place"
    del hosts["c"]
    with pytest.raises(PlacementError, match="rank 1, and rank 1 on a is left out"):
        next_generation(previous, 4, hosts, "L", "", left_out=[("a", 1)])


class FailingWorld(World):
    """A host whose rank ends as soon as it has one, however often a new process is started."""

    def __init__(self, host, **arguments):
        super().__init__(3, computes=1, **arguments)
        self.failing, self.states = host, []

    def _document(self, host):
        document = super()._document(host)
        if host.name != self.failing:
            return document
        generation = host.running
        lives = [warm(f"{host.name}/new{generation.number if generation else 0}")]
        ended = [
            ProcessState(slot, "ended", reason="was killed by SIGSEGV")
            for slot in (generation.slots if generation else [])
            if slot.startswith(host.name)
        ]
        return replace(document, processes=ended + lives) if ended else document

    def _decide(self, name, decider):
        decide = decider.decide

        def seen(now):
            effects = decide(now)
            self.states += [one.state for one in effects if isinstance(one, JobState) and one.state]
            return effects

        decider.decide = seen
        try:
            super()._decide(name, decider)
        finally:
            decider.decide = decide


def test_a_rank_that_crashes_at_once_on_one_host_is_on_another_at_the_third_attempt():
    world = FailingWorld("none", nodes=3, spares=1)
    run(world, 4)
    world.failing = "h1"
    run(world, 6)
    records = [one for one in world.records if one.kind == "slot_left_out"]
    assert [(one.fields["host"], one.fields["rank"]) for one in records] == [("h1", 1)]
    assert world.hosts["h0"].running.hosts == ["h0", "h3", "h2"]
    assert world.hosts["h0"].running.number == 3
    assert not world.over
    step = world.step
    run(world, 2)
    assert world.step > step
    said = {one.host: one for one in world.states[-1].evidence}["h1"]
    assert (said.lost, said.rule) == (False, LEFT_OUT)
    assert "rank 1: its process ended 2 times without a step" in said.reason
    world.deciders["c0"].confirm_repaired("h1", world.now)
    run(world, 2)
    assert [one.kind for one in world.records if one.kind == "slot_cleared"]
    assert not world.states[-1].evidence


@pytest.mark.parametrize("spares", [1, 0])
def test_a_rank_whose_place_somebody_calls_broken_moves_while_it_lives(spares):
    world = FailingWorld("none", nodes=3, spares=spares)
    run(world, 4)
    decider = world.deciders["c0"]
    assert decider.confirm_broken("h1", (0, 2), "", world.now) == "no job has rank 0, 2 on h1"
    assert decider.confirm_broken("h3", (1,), "", world.now) == "no job has rank 1 on h3"
    assert not [one for one in world.records if one.kind == "slot_left_out"]
    before, step = world.hosts["h0"].running, world.step
    assert decider.confirm_broken("h1", (1,), "Xid 79", world.now) == ""
    run(world, 6)
    after = world.hosts["h0"].running
    said = {one.host: one for one in world.states[-1].evidence}["h1"]
    assert (said.lost, said.rule) == (False, LEFT_OUT)
    assert said.reason == "rank 1: confirmed broken: Xid 79"
    assert world.step > step
    assert not world.over
    if not spares:
        assert after == before, "it stays where it is, for there is no other place"
        why = "rank 1 is left out on h1 (confirmed broken: Xid 79), but there is no warm spare"
        assert why in world.states[-1].reason
        return
    assert after.planned
    assert after.hosts == ["h0", "h3", "h2"]
    assert after.lost == [1]
    assert after.number == before.number + 1
    assert "rank 1 is left out on h1 (confirmed broken: Xid 79)" in after.reason
    run(world, 6)
    assert world.hosts["h0"].running == after, "once"


def test_only_the_rank_that_leaves_moves_and_its_neighbours_stay():
    previous = generation(3, "a/p0", "a/p1", "b/p0", "b/p1")
    hosts = {
        "a": document("a", warm("a/p0"), warm("a/p1"), warm("a/p9")),
        "b": document("b", warm("b/p0"), warm("b/p1")),
        "c": document("c", warm("c/p0"), warm("c/p1")),
    }
    moved = next_generation(
        previous, 4, hosts, "L", "", planned=True, left_out=[("a", 1)], leaving=[1]
    )
    assert moved.slots == ["a/p0", "c/p0", "b/p0", "b/p1"]
    assert moved.lost == [1]
    slots = BrokenSlots()
    slots.leave_out("a", 1, "Xid 79")
    slots.leave_out("a", 1, "said twice")
    assert slots.misplaced(previous) == {1: "rank 1 is left out on a (Xid 79)"}
    assert not slots.misplaced(moved)
    slots.clear("a")
    assert not slots.misplaced(previous)


def test_a_late_host_of_a_job_that_has_ended_is_told_so():
    policy = Policy(late_s=100.0)
    core = JobCore("j", policy, former="ended: after step 40")
    lonely = document("a", ProcessState("a/p0", "joined"), ProcessState("a/p1", "joined"))
    assert core.decide(JobInput({"a": lonely}), 0.0).phase == "waiting"
    assert core.decide(JobInput({"a": lonely}), 99.0).phase == "waiting"
    decision = core.decide(JobInput({"a": lonely}), 101.0)
    assert decision.phase == "failed"
    assert decision.reason == (
        "the last run of this job has ended: after step 40; for another, only 1 of 2 + 1 hosts "
        "are here"
    )
    assert decision.orders["a"].phase == "failed"
    first = JobCore("j", policy)
    first.decide(JobInput({"a": lonely}), 0.0)
    assert first.decide(JobInput({"a": lonely}), 1e6).phase == "waiting", "nothing ended before"
