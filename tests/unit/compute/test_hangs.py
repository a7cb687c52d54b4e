"""A rank that hangs is ended, and no other: not in an evaluation of all, not on old words."""

from dataclasses import replace

import pytest
from simulated_host import JOB
from test_partitions import run
from test_slots import FailingWorld, document, generation, warm

from compute.decide.hangs import hung_ranks
from fabric_train.agent.hangs import STANDS, WAITS
from fabric_train.messages.documents import (
    DocumentError,
    ProcessState,
    parse,
    to_data,
)

SLOTS = ("a/p0", "a/p1", "b/p0", "b/p1")


def said(*still):
    """Documents of four ranks on two hosts."""
    states = [replace(warm(slot), still=one) for slot, one in zip(SLOTS, still, strict=True)]
    return {"a": document("a", *states[:2]), "b": document("b", *states[2:])}


@pytest.mark.parametrize(
    ("still", "hung"),
    [
        ((STANDS, WAITS, WAITS, WAITS), {0: "a/p0"}),
        ((STANDS, STANDS, WAITS, WAITS), {0: "a/p0", 1: "a/p1"}),
        ((STANDS, WAITS, WAITS, ""), {0: "a/p0"}),
        ((STANDS, WAITS, "", ""), {}),
        ((STANDS, STANDS, STANDS, WAITS), {}),
        ((STANDS, STANDS, STANDS, STANDS), {}),
        ((WAITS, WAITS, WAITS, WAITS), {}),
        ((STANDS, "", "", ""), {}),
    ],
)
def test_more_than_half_of_the_others_have_to_wait(still, hung):
    assert hung_ranks(generation(3, *SLOTS), said(*still)) == hung


def test_half_of_the_others_are_not_more_than_half():
    ran, told = generation(3, *SLOTS[:3]), said(STANDS, WAITS, "", "")
    assert hung_ranks(replace(ran, hosts=["a", "a", "b"]), told) == {}


def test_a_frozen_rank_hangs_though_the_others_do_not_wait_yet():
    ran, told = generation(3, *SLOTS), said("", "", "", "")
    told["a"] = document("a", replace(warm("a/p0"), frozen=True), told["a"].processes[1])
    assert hung_ranks(ran, told) == {0: "a/p0"}
    assert hung_ranks(ran, told, offline=["b"]) == {}
    frozen = [replace(warm(slot), frozen=True) for slot in SLOTS]
    told = {"a": document("a", *frozen[:2]), "b": document("b", *frozen[2:])}
    assert hung_ranks(ran, told) == {}, "a scheduler has stopped all of them"


def test_a_rank_alone_hangs_for_nobody():
    one = replace(generation(3, "a/p0"), hosts=["a"])
    assert hung_ranks(one, {"a": document("a", replace(warm("a/p0"), still=STANDS))}) == {}


def test_what_is_no_rank_or_has_ended_and_whose_word_is_old_does_not_count():
    ran, told = generation(3, *SLOTS), said(STANDS, WAITS, WAITS, WAITS)
    assert hung_ranks(ran, told, offline=["b"]) == {}
    assert hung_ranks(ran, told, offline=["a"]) == {}
    spare = replace(warm("a/p9"), still=STANDS)
    told["a"] = document("a", spare, *told["a"].processes[1:])
    assert hung_ranks(ran, told) == {}
    ended = ProcessState("a/p0", "ended", still=STANDS)
    told["a"] = document("a", ended, *told["a"].processes[1:])
    assert hung_ranks(ran, told) == {}


def test_a_document_says_it_only_where_there_is_something_to_say():
    told = document("a", warm("a/p0"))
    assert "still" not in to_data(told)["processes"][0], "the version before does not know it"
    stands = document("a", replace(warm("a/p0"), still=STANDS))
    assert parse(type(stands), to_data(stands)) == stands
    assert "frozen" not in to_data(stands)["processes"][0]
    frozen = document("a", replace(warm("a/p0"), still=STANDS, frozen=True))
    assert parse(type(frozen), to_data(frozen)) == frozen
    assert not stands.is_vote_of(told), "it is decided on at once"
    data = to_data(stands)
    data["processes"][0]["still"] = "sleeps"
    with pytest.raises(DocumentError, match="a/p0: still is sleeps, neither stands nor waits"):
        parse(type(stands), data)


class HangingWorld(FailingWorld):
    """Ranks on ``hung`` stand, those elsewhere wait, as long as their processes live."""

    def __init__(self):
        super().__init__("none", nodes=4, spares=1)
        self.hung, self.others, self.killed = (), WAITS, []

    @property
    def rank(self):
        return self.hosts["h0"].running.hosts.index("h2")

    @property
    def slot(self):
        return self.hosts["h0"].running.slots[self.rank]

    def _document(self, host):
        made = super()._document(host)
        if not self.hung or host.running is None or host.running.number > 1:
            return made
        ranks, processes = host.running.ranks, []
        for one in made.processes:
            if one.process in self.killed:
                one = replace(one, state="ended", reason="hangs: it works without a collective")
            elif one.process in ranks:
                one = replace(one, still=STANDS if host.name in self.hung else self.others)
            processes.append(one)
        return replace(made, processes=processes)


def orders(world):
    """Processes that the newest orders end."""
    return [
        name
        for order in world.orders.values()
        if JOB in order.jobs
        for name in order.jobs[JOB]["kill"]
    ]


def test_it_is_ended_and_its_rank_goes_on_elsewhere():
    world = HangingWorld()
    run(world, 4)
    before = world.hosts["h0"].running
    world.hung = ("h2",)
    run(world, 2)
    assert orders(world) == [world.slot]
    world.killed = orders(world)
    run(world, 3)
    after = world.hosts["h0"].running
    assert after.number == before.number + 1
    assert after.lost == [before.hosts.index("h2")]
    assert "hangs: it works without a collective" in after.reason
    own = f"{world.killed[0]} is to be killed"  # a property of worlds in which nobody hangs
    assert not [one for one in world.violations if not one.endswith(own)]
    step = world.step
    run(world, 2)
    assert world.step > step


def test_what_was_ordered_is_taken_back_by_a_stop():
    world = HangingWorld()
    run(world, 4)
    world.hung = ("h2",)
    run(world, 1)
    assert orders(world) == [world.slot]
    world.deciders["c0"].stop(True, "switch work", world.now)
    run(world, 2)
    assert orders(world) == []


@pytest.mark.parametrize("others", [STANDS, ""])
def test_an_evaluation_of_all_ranks_ends_nobody(others):
    world = HangingWorld()
    run(world, 4)
    world.hung, world.others = ("h2",), others
    run(world, 10)
    assert orders(world) == []
    assert world.hosts["h0"].running.number == 1


@pytest.mark.parametrize("why", ["observe", "stopped"])
def test_nobody_is_ended_where_nothing_may_be_done(why):
    world = HangingWorld()
    run(world, 4)
    decider = world.deciders["c0"]
    if why == "observe":
        decider.set_mode("observe", world.now)
    else:
        decider.stop(True, "switch work", world.now)
    world.hung = ("h2",)
    run(world, 4)
    assert orders(world) == []
    assert world.hosts["h0"].running.number == 1
    if why == "observe":
        assert f"would end {world.slot}, rank {world.rank}, which hangs" in world.states[-1].reason
