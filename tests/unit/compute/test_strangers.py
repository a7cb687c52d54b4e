"""Attack S1: a stranger who names a job has no part in it, whatever he says."""

import dataclasses

import pytest
from job_world import JOB, USER, World
from test_partitions import run

from compute.decide.effects import FenceIssued, JobState, Order, Record
from fabric_train.messages.documents import ProcessState
from telemetry.messages.documents import HostJob

STRANGER = 65534


def stranger(world, host="x9", uid=STRANGER, key="", **changes):
    """What he says of the job on his host. Returns the effects of the next decision."""
    decider = world.deciders["c0"]
    model = world.hosts["h0"].document(world.now)
    document = dataclasses.replace(
        model, host=host, incarnation="mallory", key=key, token="his",
        processes=[ProcessState(f"{host}/mallory/p0", "warm")], **{"accepted": None, **changes},
    )  # fmt: skip
    news = HostJob(job=JOB, incarnation="mallory", uid=uid)
    decider.host_job(host, JOB, news, world.now, document=document)
    return decider.decide(world.now)


def job_of_h0(world):
    decider = world.deciders["c0"]
    return decider._jobs[decider.job_of("h0", JOB)]


def is_told(effects, host):
    return [one for one in effects if isinstance(one, Order) and one.host == host]


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize(
    "said",
    [{"failed": "mallory says so"}, {"suspects": 99}, {"nodes": 99}, {}],
    ids=["kills", "suspects", "wrong-shape", "one-too-many"],
)
def test_nothing_that_he_says_changes_the_job(world, said, key):
    before = job_of_h0(world).core.generation
    effects = stranger(world, key=key, **said)
    for host in ("h0", "h1", "h2", "h3"):
        assert is_told(effects, host) == []
    run(world, 2)
    assert job_of_h0(world).core.generation == before
    assert not world.over
    assert world.violations == []
    assert not [one for one in effects if isinstance(one, FenceIssued)]


def test_he_learns_no_token_and_no_address_of_the_job(world):
    members = job_of_h0(world).core.generation.members
    secrets = {text for one in members for text in (one.host, one.incarnation, one.address)}
    assert secrets
    for _ in range(40):
        said = repr(is_told(stranger(world), "x9"))
        assert not [text for text in secrets if text in said]
        run(world, 0.25)


def test_a_generation_of_his_own_is_ordered_of_nobody(world):
    """S1d: he names himself and his store in a generation that he says to have accepted."""
    newest = job_of_h0(world).core.generation
    forged = dataclasses.replace(
        newest, number=newest.number + 1, base=newest.number, formed=True, store="6.6.6.6:6",
        slots=["x9/mallory/p0", *newest.slots[1:]], hosts=["x9", *newest.hosts[1:]], lost=[0],
    )  # fmt: skip
    effects = stranger(world, accepted=forged, running=forged.number)
    run(world, 2)
    effects += world.deciders["c0"].decide(world.now)
    assert "6.6.6.6" not in repr([one for one in effects if isinstance(one, Order)])
    assert job_of_h0(world).core.generation == newest


def test_his_votes_fence_nobody(world):
    """S1g: three hosts of his say that they miss h0."""
    for host in ("x7", "x8", "x9"):
        stranger(world, host=host, misses=["h0"])
    run(world, 5)
    assert world.fences["c0"] == []
    assert job_of_h0(world).votes.missed == {} or not job_of_h0(world).votes.missed


def test_he_is_named_once(world):
    effects = stranger(world) + stranger(world, failed="x")
    (record,) = [one for one in effects if isinstance(one, Record) and one.kind == "namesake"]
    assert record.fields["others"] == [JOB]
    assert (record.fields["host"], record.fields["uid"]) == ("x9", STRANGER)
    shown = {one.job for one in effects if isinstance(one, JobState)}
    assert shown <= {record.fields["job"]}


def test_who_comes_and_goes_is_named_once_and_leaves_nothing_in_the_job(world):
    decider = world.deciders["c0"]
    told = []
    for _ in range(5):
        told += stranger(world, failed="x")
        decider.host_job("x9", JOB, None, world.now)
        told += decider.decide(world.now)
    assert len([one for one in told if isinstance(one, Record) and one.kind == "namesake"]) == 1


def test_an_end_of_his_own_fabric_run_is_not_the_jobs(world):
    """With a key his host is not counted, whatever uid its root says."""
    world = World(13, computes=1, key="k")
    run(world, 4)
    decider = world.deciders["c0"]
    news = HostJob(job=JOB, incarnation="mallory", uid=USER, gone=True)
    decider.host_job("x9", JOB, news, world.now)
    assert "x9" not in job_of_h0(world).agents
    assert decider.is_home("h0", decider.job_of("h0", JOB))
    assert not decider.is_home("x9", decider.job_of("h0", JOB))
    stranger(world, uid=USER, key="guessed", failed="x")
    run(world, 2)
    assert not world.over
    assert world.violations == []


def test_a_job_that_forms_beside_his_forms(world):
    decider = World(12, computes=1)
    stranger_first = decider.deciders["c0"]
    document = decider.hosts["h0"].document(0.0)
    document = dataclasses.replace(document, host="x9", incarnation="m", failed="mallory")
    news = HostJob(job=JOB, incarnation="m", uid=STRANGER)
    stranger_first.host_job("x9", JOB, news, 0.0, document=document)
    run(decider, 4)
    assert decider.progress[0] == 1
    assert stranger_first.job_of("h0", JOB) != stranger_first.job_of("x9", JOB) == JOB
    orders = decider.orders["c0", "h0"]
    assert list(orders.jobs) == [JOB], "its hosts know it by its own name"


def test_who_takes_the_name_on_a_host_whose_run_has_ended_hides_no_loss(world):
    """S8: the job's fabric-run on h3 has ended, then another user has one of that name there."""
    decider = world.deciders["c0"]
    stranger(world, host="h3")
    agent = job_of_h0(world).agents["h3"]
    assert agent.gone
    assert agent.incarnation == world.hosts["h3"].incarnation
    decider.host_job("h3", JOB, None, world.now)
    assert "h3" not in job_of_h0(world).agents


def test_fences_of_before_a_restart_hold_for_both(world):
    decider = world.deciders["c0"]
    fence = decider._issue(JOB, job_of_h0(world), "h3", "x", world.now)[0].fence
    world.crash_compute("c0")
    again = world.deciders["c0"]
    again.restore([fence], world.now)
    stranger(world)
    run(world, 2)
    job = again._jobs[again.job_of("h0", JOB)]
    assert fence.id in job.fences


def test_fences_say_whose_job_they_are_of_and_are_nobody_elses_after_a_restart(world):
    world.hosts["h1"].up = False
    run(world, 5)
    [fence] = world.fences["c0"]
    assert fence.uid == USER
    world.crash_compute("c0")
    stranger(world)
    run(world, 2)
    decider = world.deciders["c0"]
    his = decider._jobs[decider.job_of("x9", JOB)]
    assert job_of_h0(world) is not his
    assert fence.id in job_of_h0(world).fences
    assert his.fences == {}
