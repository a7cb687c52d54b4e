"""While a job waits for a spare, those that are left decide: once a majority has agreed. Pure."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_world import World
from network_worlds import run

from compute.decide.choice import is_chosen
from compute.decide.parking import can_shrink, electors_of, parked_generation
from compute.decide.placement import next_generation
from fabric_train.messages.documents import AgentDocument, JobGeneration, Member, ProcessState

NAMES = "abcdefg"


def agent(host, life="i", **more):
    process = ProcessState(f"{host}.{life}", "warm", layout="L", committed=1)
    return AgentDocument("j", host, life, 4, 0, 1, f"{host}:1", f"{host}:2", "t", [process], **more)


def generation(hosts=NAMES, number=3):
    agents = [f"{host}/i" for host in hosts]
    members = [Member(host, "i", f"{host}:1", f"{host}:2", "t") for host in hosts]
    return JobGeneration(
        number, number - 1, [f"{host}.i" for host in hosts], list(hosts), agents, agents, members,
        f"{hosts[0]}:2", formed=True,
    )  # fmt: skip


def park(previous, hosts, electors, **more):
    documents = {host: agent(host) for host in hosts}
    return parked_generation(previous, previous.number + 1, documents, electors, "why", **more)


def test_the_ranks_stay_and_who_is_left_decides():
    parked = park(generation("abcd"), "abc", ["a/i", "b/i", "c/i", "d/i"])
    assert (parked.slots, parked.hosts) == (["a.i", "b.i", "c.i", "d.i"], list("abcd"))
    assert parked.electorate == ["a/i", "b/i", "c/i"]
    assert parked.voters == ["a/i", "b/i", "c/i", "d/i"]
    assert (parked.number, parked.base, parked.formed) == (4, 3, True)


def test_it_changes_who_decides_once_a_majority_of_all_has_accepted_it():
    parked = park(generation("abcd"), "abc", ["a/i", "b/i", "c/i", "d/i"])
    documents = {host: agent(host) for host in "abc"}
    for count in range(4):
        chosen = is_chosen(parked, documents)
        assert chosen == (count >= 3), "of four"
        electors = electors_of(parked, chosen=chosen)
        assert electors == (["a/i", "b/i", "c/i"] if chosen else ["a/i", "b/i", "c/i", "d/i"])
        if count < 3:
            documents["abc"[count]] = agent("abc"[count], accepted=parked)


def test_a_spare_that_comes_before_is_voted_for_by_all():
    parked = park(generation("abcd"), "abc", ["a/i", "b/i", "c/i", "d/i"])
    documents = {host: agent(host) for host in "abcs"}
    for chosen, voters in ((False, "abcd"), (True, "abc")):
        electors = electors_of(parked, chosen=chosen)
        after = next_generation(parked, 5, documents, "L", "", electors=electors)
        assert after.hosts == ["a", "b", "c", "s"]
        assert after.voters == [f"{host}/i" for host in voters]
        assert (after.lost, after.parked) == ([3], False)


def test_a_coordinator_that_was_started_again_knows_who_decides_before_it_judges():
    """Fenced hosts and one that restarted are of the electorate: three of seven are no majority."""
    world = World(5, nodes=7, spares=0, computes=1)
    run(world, 3)
    for name in ("h2", "h3", "h4"):
        world.hosts[name].up = False
    while not world.fences["c0"]:
        world.tick()
    world.hosts["h0"].restart()
    run(world, 1)
    before = list(world.fences["c0"])
    world.hosts["h5"].up = False
    run(world, 0.5)
    world.crash_compute("c0")
    run(world, 4)
    assert {fence.host for fence in before} == {"h2", "h3", "h4"}
    assert world.fences["c0"] == before


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from(NAMES)))
def test_it_is_proposed_only_where_it_can_be_chosen(electors, left):
    names = [f"{host}/i" for host in sorted(electors)]
    documents = {host: agent(host) for host in left}
    voting = left & electors
    assert can_shrink(names, documents) == (
        2 * len(voting) > len(electors) and voting < electors
    )  # fmt: skip
    if can_shrink(names, documents):
        parked = park(generation(sorted(electors)), left, names)
        accepted = {host: replace(one, accepted=parked) for host, one in documents.items()}
        assert is_chosen(parked, accepted)
    assert not can_shrink(names, {host: agent(host, "another") for host in left})


@pytest.mark.virtual_time
@pytest.mark.parametrize("computes", [1, 2])
@pytest.mark.parametrize("nodes", range(4, 9))
def test_losses_one_after_the_other_while_no_spare_comes(nodes, computes):
    """Down to two hosts: each loss is fenced, and spares end it all."""
    world = World(nodes, nodes=nodes, spares=0, computes=computes)
    run(world, 3)
    assert world.step
    for number in range(nodes - 2):
        world.hosts[f"h{nodes - 1 - number}"].up = False
        run(world, 3)
    fenced = {fence.host for fences in world.fences.values() for fence in fences}
    assert fenced == {f"h{number}" for number in range(2, nodes)}
    step = world.step
    for number in range(2, nodes):
        world.hosts[f"h{number}"].restart()
    run(world, 8)
    assert world.step > step
    assert not world.violations
