"""Who comes when a job has all of its hosts: he is not taken, and the job goes on without him.

He is the job's own user, and says its key: that he is no stranger is his own word.
"""

import dataclasses

import pytest
from job_world import JOB, USER, World
from test_partitions import run

from compute.decide.arrivals import TOO_MANY, Arrivals
from compute.decide.effects import Order
from fabric_train.messages.documents import JobOrder, ProcessState, parse
from telemetry.messages.documents import HostJob


def comes(world, host="x9", **changes):
    """One more fabric-run of the job, and what it is told at once."""
    says(world, host, **changes)
    orders = [one for one in world.deciders["c0"].decide(world.now) if isinstance(one, Order)]
    return {one.host: parse(JobOrder, one.order.jobs[JOB]) for one in orders if one.order.jobs}


def says(world, host="x9", **changes):
    model = world.hosts["h0"].document(world.now)
    process = ProcessState(f"{host}/late/p0", "warm", layout=model.processes[0].layout)
    document = dataclasses.replace(
        model, host=host, incarnation="late", token="his", processes=[process], key=world.key,
        **{"accepted": None, "running": 0, **changes},
    )  # fmt: skip
    for decider in world.deciders.values():
        decider.host_job(host, JOB, news_of(document), world.now, document=document)


def news_of(document):
    return HostJob(job=JOB, incarnation=document.incarnation, uid=USER)


@pytest.fixture
def world():
    made = World(31, computes=1, key="k")
    run(made, 4)
    assert made.progress[0] == 1
    return made


def core(world):
    decider = world.deciders["c0"]
    return decider._jobs[decider.job_of("h0", JOB)].core


def test_he_waits_and_learns_of_nobody(world):
    told = comes(world)
    assert set(told) == {"x9"}
    assert (told["x9"].phase, told["x9"].generation, told["x9"].reason) == (
        "waiting", None, TOO_MANY,
    )  # fmt: skip


def test_his_failure_is_not_the_jobs(world):
    comes(world, failed="mallory says so")
    run(world, 3)
    assert not world.over
    assert core(world).phase == "running"


@pytest.mark.parametrize("frees", ["a spare has left", "a host is drained"])
def test_when_a_place_is_free_it_is_his(world, frees):
    comes(world)
    decider = world.deciders["c0"]
    if frees == "a host is drained":
        decider.drain("h1", world.now)
    else:
        spare = next(one for one in ("h4", "h5") if one not in core(world).generation.hosts)
        decider.host_job(spare, JOB, None, world.now)
    orders = {
        one.host: parse(JobOrder, one.order.jobs[JOB])
        for one in decider.decide(world.now)
        if isinstance(one, Order) and one.host == "x9"
    }
    assert orders["x9"].phase == "proposed"
    assert orders["x9"].generation == core(world).generation


def test_the_first_keep_their_places_while_a_job_forms():
    world = World(32, nodes=2, spares=1, computes=1)
    # Three of three are here before him, and not ready yet.
    decider = world.deciders["c0"]
    for name in ("h0", "h1", "h2"):
        document = world.hosts[name].document(0.0)
        starting = [dataclasses.replace(one, state="starting") for one in document.processes]
        document = dataclasses.replace(document, processes=starting)
        news = news_of(document)
        decider.host_job(name, JOB, news, 0.0, document=document)
        decider.decide(0.0)
    told = comes(world, host="a0")  # his name comes first
    assert (told["a0"].phase, told["a0"].reason) == ("failed", TOO_MANY)
    assert not {"h0", "h1", "h2"}.intersection(
        host for host, one in told.items() if one.phase == "failed"
    )
    run(world, 4)
    assert world.progress[0] == 1
    assert not world.over
    assert "a0" not in core(world).generation.hosts


def test_who_goes_and_comes_again_comes_last():
    model = World(33, computes=1).hosts["h0"].document(0.0)

    def here(*names):
        return {
            host: dataclasses.replace(model, host=host, incarnation=life)
            for host, life in (name.split("/") for name in names)
        }

    arrivals = Arrivals()
    arrivals.note(here("b/1"))
    arrivals.note(here("b/1", "a/1"))
    assert arrivals.surplus(here("b/1", "a/1"), 1) == ["a"]
    arrivals.note(here("b/2", "a/1"))
    assert arrivals.surplus(here("b/2", "a/1"), 1) == ["b"]
    assert arrivals.surplus(here("b/2", "a/1"), 2) == []


FORGED = [
    {"suspects": 10**9},
    {"running": 10**9},
    {"accepted": "his", "running": 2},
    {"accepted": "his", "suspects": 3, "failed": "x", "running": 2},
]


def his_generation(newest, number):
    return dataclasses.replace(
        newest, number=number, base=newest.number, slots=["x9/late/p0", *newest.slots[1:]],
        hosts=["x9", *newest.hosts[1:]], lost=[0], electorate=["x9/late"], voters=["x9/late"],
    )  # fmt: skip


@pytest.mark.parametrize("computes", [1, 2])
@pytest.mark.parametrize("said", FORGED, ids=lambda said: "-".join(said))
@pytest.mark.parametrize("number", [2, 10**9])
def test_he_has_no_say_also_after_a_restart_of_all_fabric_computes(said, number, computes):
    world = World(34, computes=computes, key="k")
    run(world, 4)
    newest = core(world).generation
    if "accepted" in said:
        said = {**said, "accepted": his_generation(newest, number)}
    for again in (False, True):
        if again:
            for name in world.deciders:
                world.crash_compute(name)
        says(world, **said)  # nobody decides before all documents are there
        run(world, 3)
        assert core(world).generation == newest
        assert core(world).phase == "running"
        assert not world.over
        assert world.violations == []


def test_a_spare_that_comes_late_is_a_member_once_a_generation_has_it():
    world = World(35, nodes=3, spares=1, computes=1)
    run(world, 4)
    decider = world.deciders["c0"]
    decider.host_job("h3", JOB, None, world.now)  # the spare has left
    decider.decide(world.now)
    told = comes(world)
    newest = told["x9"].generation
    assert newest == core(world).generation
    follows = comes(world, accepted=newest, running=0)
    assert follows["x9"].phase == "running"
