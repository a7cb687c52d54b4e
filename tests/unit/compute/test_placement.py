"""Which process gets which rank. Pure."""

import pytest

from compute.decide.choice import is_chosen, is_contested
from compute.decide.placement import (
    NoStateError,
    PlacementError,
    first_generation,
    host_order,
    misfits,
    next_generation,
)
from fabric_train.messages.documents import AgentDocument, ProcessState


def agent(host, *states, nproc=2, standby=0, software=None, rank=None, new=False, **more):
    """``states`` of the main processes; ``standby`` further warm ones."""
    processes = [
        ProcessState(f"{host}.i.{n}", state, layout="L" if state == "warm" else None,
                     software=software or {}, reason="exited with status 1",
                     committed=int(state == "warm" and not new))
        for n, state in enumerate(states)
    ] + [
        ProcessState(f"{host}.i.s{n}", "warm", standby=True, layout="L") for n in range(standby)
    ]  # fmt: skip
    return AgentDocument(
        "gpt", host, "i", 2, 1, nproc, f"{host}:1", f"{host}:2", "t", processes,
        node_rank=rank, **more,
    )  # fmt: skip


def cluster(state="warm", **standby):
    names = ("h2", "h10", "h11")
    return {name: agent(name, state, state, standby=standby.get(name, 0)) for name in names}


def first():
    return first_generation(cluster("joined"), 2)


def test_hosts_are_in_their_natural_order_or_the_launchers():
    assert host_order(cluster()) == ["h2", "h10", "h11"]
    places = {name: agent(name, rank=place) for name, place in (("a", 2), ("b", 0), ("c", 1))}
    assert host_order(places) == ["b", "c", "a"]


def test_the_first_generation_takes_the_first_hosts_in_order():
    generation = first()
    assert generation.slots == ["h2.i.0", "h2.i.1", "h10.i.0", "h10.i.1"]
    assert generation.hosts == ["h2", "h2", "h10", "h10"]
    assert generation.electorate == generation.voters == ["h10/i", "h11/i", "h2/i"]
    assert (generation.store, generation.formed, generation.base) == ("h2:2", False, 0)


def test_it_waits_for_processes_that_have_not_joined():
    with pytest.raises(PlacementError, match="not all processes of h10 have joined"):
        first_generation(cluster("joined") | {"h10": agent("h10", "joined", "starting")}, 2)


def test_a_process_is_replaced_on_its_own_host_where_that_is_possible():
    hosts = cluster(h2=1, h10=1) | {"h10": agent("h10", "ended", "warm", standby=1)}
    generation = next_generation(first(), 2, hosts, "L", "why")
    assert generation.slots == ["h2.i.0", "h2.i.1", "h10.i.s0", "h10.i.1"]
    assert (generation.lost, generation.base, generation.formed) == ([2], 1, True)
    assert generation.voters == first().electorate


def test_all_ranks_of_a_lost_host_go_to_one_idle_host():
    hosts = cluster(h2=2, h11=1)
    del hosts["h10"]
    generation = next_generation(first(), 5, hosts, "L", "why")
    assert generation.slots == ["h2.i.0", "h2.i.1", "h11.i.0", "h11.i.1"]
    assert generation.electorate == ["h11/i", "h2/i"]
    assert generation.store == "h2:2"


def test_standbys_of_other_hosts_help_when_nothing_else_is_left():
    hosts = {"h2": agent("h2", "warm", "warm", standby=2)}
    assert next_generation(first(), 2, hosts, "L", "").hosts == ["h2"] * 4


def test_the_store_is_on_a_survivor():
    hosts = cluster()
    del hosts["h2"]
    assert next_generation(first(), 2, hosts, "L", "").store == "h10:2"


def test_a_spare_with_another_layout_is_none():
    hosts = cluster()
    del hosts["h10"]
    with pytest.raises(PlacementError, match="no warm spare for rank 2, 3"):
        next_generation(first(), 2, hosts, "another", "")


def test_without_a_survivor_there_is_no_state():
    with pytest.raises(NoStateError):
        next_generation(first(), 2, {"h11": agent("h11", "warm", "warm")}, "L", "")


def test_a_survivor_of_a_generation_that_never_ran_holds_no_state():
    hosts = cluster()
    del hosts["h10"]
    second = next_generation(first(), 2, hosts, "L", "")
    assert second.hosts == ["h2", "h2", "h11", "h11"]
    left = {"h11": agent("h11", "warm", "warm", new=True), "h12": agent("h12", "warm", "warm")}
    with pytest.raises(NoStateError, match="and with them the state"):
        next_generation(second, 3, left, "L", "")


def test_the_odd_one_out_does_not_fit():
    hosts = cluster("joined") | {"h2": agent("h2", "joined", nproc=1)}
    assert misfits(hosts) == {
        "h2": "--nodes, --spares, --nproc-per-node are 2, 1, 1 here and others on most hosts of "
        "the job"
    }
    torches = {
        name: agent(name, "joined", software={"torch": version})
        for name, version in (("a", "2.13"), ("b", "2.14"), ("c", "2.13"))
    }
    assert set(misfits(torches)) == {"b"}
    assert "another torch than on most hosts" in misfits(torches)["b"]


def test_a_generation_is_chosen_by_a_majority_and_all_that_hold_a_rank():
    generation = first()
    hosts = cluster("joined")

    def accepted(*names):
        return {
            name: agent(name, "joined", "joined", accepted=generation if name in names else None)
            for name in hosts
        }

    assert not is_chosen(generation, accepted("h2"))
    assert not is_chosen(generation, accepted("h2", "h11"))
    assert is_chosen(generation, accepted("h2", "h10"))


def test_a_number_that_two_proposals_share_is_contested():
    mine = first()
    hosts = cluster("joined")
    del hosts["h10"]
    theirs = first_generation(hosts, 2)
    assert theirs.number == mine.number
    assert is_contested(mine, {"h2": agent("h2", accepted=theirs)})
    assert not is_contested(mine, {"h2": agent("h2", accepted=mine)})


def test_tokens_and_words_do_not_name_a_proposal():
    generation = first()
    other = first()
    object.__setattr__(other, "reason", "in other words")
    assert generation.proposal == other.proposal
