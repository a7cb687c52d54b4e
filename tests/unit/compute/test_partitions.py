"""No healthy host is evicted and no rank taken over twice, whatever happens when. Virtual time."""

import dataclasses
import itertools
import os

import pytest
from job_world import JOB, TICK_S, World

from compute.decide.effects import Order
from telemetry.messages.documents import HostJob

SCENARIOS = 12


def run(world: World, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S)):
        world.tick()


def disturb(world: World) -> None:
    """One random disturbance."""
    pick = world.random
    hosts = list(world.hosts.values())
    kind = pick.choice(["pause", "crash", "broker", "split", "lossy", "compute", "two"])
    if kind in ("pause", "two"):
        pick.choice(hosts).paused = True
    if kind in ("crash", "two"):
        pick.choice(hosts).up = False
    elif kind == "broker":
        pick.choice(hosts).broker = False
    elif kind == "split":
        side = {name for name in world.hosts if pick.random() < 0.3}
        other = set(world.hosts) - side
        world.cut |= {frozenset(pair) for pair in itertools.product(side, other)}
        if pick.random() < 0.5:
            for name in side:
                world.hosts[name].broker = False
    elif kind == "lossy":
        pairs = [frozenset(pair) for pair in itertools.combinations(world.hosts, 2)]
        world.cut |= set(pick.sample(pairs, 2))
    elif kind == "compute":
        world.crash_compute(pick.choice(list(world.deciders)))


def repair(world: World) -> None:
    """All is well again; hosts that were lost come back as new ones."""
    world.cut.clear()
    for one in world.hosts.values():
        one.broker, one.paused = True, False
        if not one.up or one.stopped:
            one.restart()


def scenario(seed: int) -> World:
    world = World(seed, nodes=3 + seed % 3, spares=1 + seed % 3)
    world.delay_s = world.random.choice([0.05, 0.2, 0.8])
    run(world, 2.5 + world.delay_s)
    for _ in range(5):
        disturb(world)
        run(world, 0.2 + world.random.random() * 2)
        if world.random.random() < 0.5:
            repair(world)
            run(world, world.random.random())
        if world.violations or world.over:
            break
    return world


def check_none(seeds: range) -> None:
    for seed in seeds:
        world = scenario(seed)
        assert not world.violations, f"seed {seed}: {world.violations[:3]}"


def check(seeds: range) -> None:
    takeovers = 0
    for seed in seeds:
        world = scenario(seed)
        assert not world.violations, f"seed {seed}: {world.violations[:3]}"
        takeovers += world.takeovers
    assert takeovers > len(seeds) / 4, "the scenarios hardly ever reach a takeover"


@pytest.mark.virtual_time
def test_random_partitions_crashes_pauses_and_delays():
    check(range(SCENARIOS))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_of_them():
    first = int(os.environ.get("FABRIC_SEED", "1000"))
    check(range(first, first + 10_000))


@pytest.mark.parametrize("computes", [1, 2])
def test_a_frozen_host_is_fenced_and_its_rank_taken_over(computes):
    world = World(1, computes=computes)
    run(world, 4)
    assert world.progress[0] == 1
    world.hosts["h2"].paused = True
    frozen_at = world.now
    while world.progress[0] < 2 and world.now < frozen_at + 10:
        world.tick()
    assert world.progress[0] == 2
    generation = world.hosts["h0"].running
    assert generation.hosts == ["h0", "h1", "h4", "h3"]
    assert generation.lost == [2]
    step = world.step
    world.hosts["h2"].paused = False
    run(world, 5)
    assert world.hosts["h2"].stopped
    assert world.progress[0] == 2
    assert world.step > step
    assert not world.violations


def test_a_job_whose_hosts_are_slow_at_its_start_begins_when_they_are_ready():
    world = World(9, computes=1)
    slow = world.hosts["h1"]
    slow.obey = lambda *_: None
    run(world, 5)
    assert world.progress[0] == 0
    assert not world.over
    del slow.obey
    run(world, 2)
    assert world.progress[0] == 1
    assert not world.violations


def test_a_host_that_came_back_is_not_fenced_for_what_was_said_of_the_life_before():
    """Its peers are slow to say that they hear it again: they speak of the life that was lost."""
    world = World(12, nodes=3, spares=0, computes=2)
    run(world, 4)
    lost = world.hosts["h1"]
    lost.paused = True
    run(world, 4)
    fences = {one.incarnation for known in world.fences.values() for one in known}
    assert fences == {"i0"}
    world.cut |= {frozenset(("h1", name)) for name in ("h0", "h2")}
    lost.restart()
    run(world, 3)
    assert {one.incarnation for known in world.fences.values() for one in known} == {"i0"}
    world.cut.clear()
    run(world, 4)
    assert world.progress[0] > 1, "it takes its rank again"
    assert world.hosts["h0"].running.slots[1] == "h1.i1.0"
    assert not world.violations


def test_seeds_that_found_something():
    """6273: hosts fenced, though well, by votes over their lives before.

    103003: one fenced by the two documents that had arrived after fabric-compute was started again.
    """
    check_none(range(6273, 6274))
    check_none(range(103003, 103004))


def test_two_first_generations_at_once_begin_from_the_beginning_as_the_second():
    """Each is accepted by some hosts: neither can be chosen any more."""
    world = World(10, computes=2)
    first, second = (world.deciders[name] for name in ("c0", "c1"))
    hosts = list(world.hosts.values())
    for decider, here in ((first, hosts), (second, hosts[:5])):
        decider._policy = dataclasses.replace(world.policy, formation_wait_s=0.0)
        for host in here:
            news = HostJob(job=JOB, incarnation=host.incarnation)
            document = host.document(0.0)
            decider.host_job(host.name, JOB, news, 0.0, document=document)
    proposals = []
    for decider, obeying in ((first, hosts[:2]), (second, hosts[2:5])):
        effects = [*decider.decide(0.0), *decider.decide(1.0)]
        for one in [one for one in effects if isinstance(one, Order)]:
            if world.hosts[one.host] in obeying:
                world.hosts[one.host].obey(one.order, world._job_order(one.order))
        proposals.append(obeying[0].accepted.proposal)
    assert proposals[0] != proposals[1]
    run(world, 5)
    assert not world.violations
    assert not world.over
    assert world.progress[0] > 1
    assert not world.hosts["h0"].running.formed


def test_a_host_silent_to_one_peer_or_without_broker_is_nobodys_loss():
    world = World(2)
    run(world, 4)
    world.cut.add(frozenset(("h4", "h5")))  # between two spares
    world.hosts["h1"].broker = False
    run(world, 5)
    assert world.progress[0] == 1
    assert not any(world.fences.values())


def test_the_small_side_of_a_partition_evicts_nobody():
    world = World(3, computes=1)
    run(world, 4)
    small = {"h0", "h1"}
    for name in small:  # with the broker and fabric-compute, of all things
        world.hosts[name].broker = True
    for name in set(world.hosts) - small:
        world.hosts[name].broker = False
        world.cut |= {frozenset((name, one)) for one in small}
    run(world, 8)
    assert not any(world.fences.values())


def test_all_spares_used_up_holds_the_job():
    world = World(4, nodes=3, spares=1)
    run(world, 4)
    world.hosts["h1"].up = False
    run(world, 5)
    assert world.progress[0] == 2
    world.hosts["h2"].up = False
    run(world, 5)
    phases = [one.fields for one in world.records if one.kind == "phase"]
    assert phases[-1]["phase"] == "held"
    assert "no warm spare for rank" in phases[-1]["reason"]
    world.hosts["h1"].restart()
    run(world, 5)
    assert world.progress[0] == 4, "3 is parked: it only says who decides"
    assert not world.violations


def test_the_record_of_a_recovery_has_its_times_in_order():
    world = World(5, computes=1)
    run(world, 4)
    world.hosts["h3"].up = False
    run(world, 5)
    (record,) = [one.fields for one in world.records if one.kind == "recovery"]
    assert record["ranks"] == [3]
    assert record["to"] == ["h4"]
    times = [record[f"{name}_ms"] for name in ("fenced", "proposed", "running", "recovered")]
    assert times == sorted(times)
    assert times[0] > 0


def test_a_drained_hosts_rank_moves_while_it_is_well_and_comes_back_only_when_asked():
    world = World(6, computes=1)
    run(world, 4)
    world.deciders["c0"].drain("h1", world.now, to="h5")
    run(world, 3)
    assert world.progress[0] == 2
    assert world.hosts["h0"].running.hosts == ["h0", "h5", "h2", "h3"]
    assert not world.hosts["h1"].stopped
    assert not world.fences["c0"]
    world.deciders["c0"].drain("h4", world.now)
    world.hosts["h2"].up = False
    run(world, 4)
    assert world.progress[0] == 2  # the two hosts without ranks are drained
    world.deciders["c0"].undrain("h1", world.now)
    run(world, 4)
    assert world.hosts["h0"].running.hosts == ["h0", "h5", "h1", "h3"]
    assert not world.violations


def test_in_observe_mode_nothing_is_done_and_what_would_be_is_said():
    world = World(7, computes=1)
    world.deciders["c0"].set_mode("observe", 0.0)
    run(world, 4)
    assert world.progress[0] == 1
    world.hosts["h3"].paused = True
    run(world, 3)
    assert not world.fences["c0"]
    assert world.progress[0] == 1
    phases = [one.fields for one in world.records if one.kind == "phase"]
    assert phases[-1]["phase"] == "running"
    assert "would fence h3: silent on all rails to 5 of 5 observers" in phases[-1]["reason"]


def test_stopped_means_no_fence_and_no_generation_until_it_is_taken_back():
    world = World(8, computes=1)
    run(world, 4)
    world.deciders["c0"].stop(True, "by hand", world.now)
    world.hosts["h3"].up = False
    run(world, 3)
    assert not world.fences["c0"]
    world.deciders["c0"].stop(False, "", world.now)
    run(world, 4)
    assert world.progress[0] == 2
