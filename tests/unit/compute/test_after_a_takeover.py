"""What happens in the moments around a takeover or a move. Virtual time."""

import pytest
from job_world import TICK_S, World

from compute.decide.decision import JobInput
from compute.decide.job import JobCore
from compute.decide.policy import Policy
from fabric_train.messages.documents import AgentDocument, JobGeneration, Member, ProcessState


def run(world, seconds):
    for _ in range(round(seconds / TICK_S)):
        world.tick()


def run_until(world, generation, seconds=10):
    """Until all ranks have committed in ``generation``."""
    end = world.now + seconds
    while world.progress[0] < generation and world.now < end:
        world.tick()
    assert world.progress[0] == generation


def recoveries(world):
    return [one.fields for one in world.records if one.kind == "recovery"]


def test_a_host_that_freezes_just_after_it_took_over_is_replaced_too():
    """A fresh fault is not taken for the end of the one before."""
    world = World(21, computes=2)
    run(world, 4)
    world.hosts["h1"].paused = True
    run_until(world, 2)
    world.hosts["h4"].paused = True
    run_until(world, 3)
    assert world.hosts["h0"].running.hosts == ["h0", "h5", "h2", "h3"]
    assert {one["ranks"][0] for one in recoveries(world)} == {1}
    assert not world.violations


def test_a_host_that_is_fenced_and_does_not_say_so_is_not_called_done():
    """It is frozen, so it acknowledges nothing: the others' acknowledgements count."""
    world = World(22, computes=1)
    run(world, 4)
    lost = world.hosts["h2"]
    lost.paused = True
    deaf = world.hosts["h3"]
    obey, deaf.obey = deaf.obey, lambda *_: None
    run(world, 4)
    assert world.fences["c0"], "decided"
    assert world.progress[0] == 1, "a survivor has not applied the fence"
    assert not recoveries(world)
    deaf.obey = obey
    run(world, 3)
    assert world.progress[0] > 1
    assert not world.violations


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
def test_a_drain_that_is_taken_back_while_its_rank_moves_leaves_one_job(after_s):
    world = World(23, computes=1)
    run(world, 4)
    world.deciders["c0"].drain("h1", world.now)
    run(world, after_s)
    world.deciders["c0"].undrain("h1", world.now)
    run(world, 5)
    assert world.progress[0] in (1, 2)
    assert not any(world.fences.values())
    step = world.step
    run(world, 1)
    assert world.step > step
    assert not world.violations


def test_a_host_lost_while_another_ones_rank_moves_is_replaced_and_the_move_comes_after():
    world = World(24, computes=1)
    run(world, 4)
    world.deciders["c0"].drain("h1", world.now)
    world.hosts["h2"].paused = True
    run(world, 8)
    hosts = world.hosts["h0"].running.hosts
    assert not {"h1", "h2"} & set(hosts)
    assert {one.host for one in world.fences["c0"]} == {"h2"}, "who is drained is well"
    assert not world.violations


@pytest.mark.parametrize("after_s", [0.1, 0.2, 0.4])
def test_a_move_is_finished_though_fabric_compute_is_killed_in_it(after_s):
    """Its file has the drain. It decides before it has heard of all hosts again, of all things."""
    world = World(25, computes=1)
    run(world, 4)
    world.deciders["c0"].drain("h1", world.now, to="h5")
    run(world, after_s)
    world.crash_compute("c0")
    world.deciders["c0"].drain("h1", world.now, to="h5")
    run(world, 6)
    assert world.progress[0] > 1
    assert "h1" not in world.hosts["h2"].running.hosts
    assert not world.fences["c0"]
    assert not world.violations


def test_a_second_job_of_the_same_name_gives_spares_to_the_first_and_takes_nothing_from_it():
    world = World(26, nodes=2, spares=2, computes=1)
    first = [world.hosts[name] for name in ("h0", "h1")]
    for name in ("h2", "h3"):
        world.hosts[name].up = False
    for host in world.hosts.values():
        host.spares = 0  # each of the two was started for two hosts and no spare
    run(world, 4)
    assert world.progress[0] == 1
    before = first[0].running
    for name in ("h2", "h3"):
        world.hosts[name].restart()
    run(world, 5)
    assert world.progress[0] == 1
    assert {one.running.proposal for one in first} == {before.proposal}
    assert before.hosts == ["h0", "h1"]
    assert not any(world.fences.values())
    assert not world.violations


def document(host, **said):
    """Of an agent that runs generation 2 with one rank. ``said``: by its process."""
    agents, hosts = ["a/i", "b/i", "c/i"], ["a", "b", "c"]
    members = [Member(one, "i", f"{one}:1", f"{one}:2", "t") for one in hosts]
    generation = JobGeneration(
        2, 1, ["a/p", "b/p", "c/p"], hosts, agents, agents, members, "a:2", formed=True
    )
    process = ProcessState(f"{host}/p", "warm", layout="L", **said)
    return AgentDocument(
        "j", host, "i", 3, 0, 1, f"{host}:1", f"{host}:2", "t", [process],
        accepted=generation, running=2,
    )  # fmt: skip


def later(after_s, silent, others, **news):
    """Decided ``after_s`` after generation 2 was chosen. b says ``silent``, a and c ``others``."""
    core = JobCore("j", Policy())
    documents = {one: document(one, **(silent if one == "b" else others)) for one in "abc"}
    core.decide(JobInput(documents), 5.0)
    return core.decide(JobInput(documents, **news), 5.0 + after_s)


BEFORE, WAITING = {"committed": 1, "recovered": 1, "acknowledged": 1}, {"recovered": 2}
GOING_ON = {"recovered": 2, "committed": 2, "acknowledged": 2}
OVERDUE_S = Policy().answer_s + 1


def test_a_rank_that_does_not_answer_is_killed_in_the_end():
    waiting = BEFORE | {"acknowledged": 2}
    assert later(OVERDUE_S, BEFORE, waiting).orders["b"].kill == ["b/p"]
    assert not later(OVERDUE_S - 2, BEFORE, waiting).orders["b"].kill


def test_a_rank_is_not_killed_for_what_its_host_cannot_tell():
    """An order waits at the broker: it would kill a rank that trains when its host is back."""
    waiting = BEFORE | {"acknowledged": 2}
    assert not later(OVERDUE_S, BEFORE, waiting, offline=frozenset("b")).orders["b"].kill
    assert not later(OVERDUE_S, BEFORE, GOING_ON).orders["b"].kill, "that takes all ranks"


def test_a_generation_in_which_a_rank_does_not_recover_is_given_up_where_somebody_says_so():
    after_s = Policy().recovery_s + 1
    silent, others = BEFORE | {"acknowledged": 2}, BEFORE | WAITING | {"acknowledged": 2}
    assert later(after_s, silent, others).phase == "proposed"
    assert later(after_s, silent, others, offline=frozenset("b")).phase == "proposed"
    assert later(after_s, silent, others, offline=frozenset("abc")).phase == "running"
    assert later(after_s, silent, GOING_ON).phase == "running"
