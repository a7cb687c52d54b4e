"""All hosts and jobs of one fabric-compute: when it decides, what it shows, how it names fences."""

import dataclasses

import pytest
from job_world import JOB, USER, World
from test_partitions import run

from compute.decide.absence import STEP_UNKNOWN_S
from compute.decide.decision import JobDecision
from compute.decide.effects import FenceIssued, JobState, Record
from compute.decide.job import JobCore
from compute.decide.known_job import KnownJob
from compute.decide.policy import Policy
from compute.decide.shown_states import SHOWN_S, STATE_S
from telemetry.messages.documents import (
    LONGEST_ID,
    HostJob,
    HostObservations,
    SilentHost,
    fence_id,
    parse,
)
from telemetry.messages.envelope import BadMessageError, Sender

SENDER = Sender("boot", "d")
NOTHING = JobDecision("running")


def further(world, name, **changes):
    """The host's document, with all processes 100 steps further and ``changes``."""
    document = world.hosts[name].document(world.now)
    processes = [dataclasses.replace(one, step=one.step + 100) for one in document.processes]
    document = dataclasses.replace(document, processes=processes, **changes)
    news = HostJob(job=JOB, incarnation=document.incarnation, uid=USER)
    world.deciders["c0"].host_job(name, JOB, news, world.now, document=document)


def settled(world):
    decider = world.deciders["c0"]
    for name in world.hosts:  # What the world has sent late, too.
        further(world, name)
    decider.decide(world.now)
    assert not decider.pending
    return decider


def test_a_document_that_only_says_steps_is_no_reason_to_decide(world):
    decider = settled(world)
    further(world, "h1")
    assert not decider.pending
    further(world, "h1", suspects=1)
    assert decider.pending


def test_a_decision_later_knows_the_steps(world):
    decider = settled(world)
    newest = max(one.step for one in world.hosts["h1"].document(world.now).processes)
    further(world, "h1")
    world.now += 100
    decider.decide(world.now)
    assert decider._jobs[JOB].core.step == newest + 100


def vote(world, name, missed):
    document = world.hosts[name].document(world.now)
    hears = [one for one in document.hears if one != missed]
    further(world, name, hears=hears, misses=[missed])


def test_votes_of_a_job_are_counted_and_decide_nothing_before_they_are_enough(world, monkeypatch):
    """A decision over a job takes a time that grows with its ranks; a vote does not."""
    decider, decided = settled(world), []
    job, other = decider._jobs[JOB], KnownJob(JobCore("other", Policy()))
    decide = job.core.decide
    monkeypatch.setattr(job.core, "decide", lambda *args: decided.append(JOB) or decide(*args))
    monkeypatch.setattr(other.core, "decide", lambda *_: decided.append("other") or NOTHING)
    decider._jobs["other"] = other
    others = sorted(world.hosts.keys() - {"h0"})
    other.agents["h0"] = job.agents["h0"]
    decider._news = True
    decider.decide(world.now)
    decided.clear()
    for name in others[:-1]:
        vote(world, name, "h0")
        assert decider.urgent
        decider.decide(world.now)
        assert not decider.urgent
    assert not decided
    assert set(job.evidence["h0"].votes.missed_by) == set(others[:-1])
    for name in others:
        said = HostObservations(
            silent=[SilentHost(host="h0", rails=2, rails_probed=2)],
            heard=[one for one in others if one != name],
        )
        decider.host_observations(name, SENDER, said, world.now)
    assert not [one for one in decider.decide(world.now) if isinstance(one, FenceIssued)]
    assert not decided, "one agent hears it still"
    vote(world, others[-1], "h0")
    [fence] = [one for one in decider.decide(world.now) if isinstance(one, FenceIssued)]
    assert fence.fence.host == "h0"
    assert decided == [JOB]


def test_a_host_that_stays_away_is_fenced_when_its_time_is_over_and_a_rank_has_looked(world):
    decider = settled(world)
    for name in world.hosts.keys() - {"h0"}:
        said = HostObservations(
            silent=[SilentHost(host="h0", rails=2, rails_probed=2)],
            heard=sorted(world.hosts.keys() - {"h0", name}),
        )
        decider.host_observations(name, SENDER, said, world.now)
    assert not [one for one in decider.decide(world.now) if isinstance(one, FenceIssued)]
    assert not decider.pending
    until = world.now + world.policy.away_s
    further(world, "h1", looks=1)
    while decider.wake_at() < until + 2:
        now = decider.wake_at()
        assert not [one for one in decider.decide(now) if isinstance(one, FenceIssued)]
    assert not decider.pending
    world.now = until + 2
    further(world, "h1", looks=1)
    assert not [one for one in decider.decide(world.now) if isinstance(one, FenceIssued)]
    further(world, "h1", looks=2)
    assert decider.urgent
    fences = [one for one in decider.decide(world.now) if isinstance(one, FenceIssued)]
    assert [one.fence.host for one in fences] == ["h0"]


def test_a_loss_that_somebody_confirms_needs_no_majority_but_a_host_that_is_there_is_not_lost():
    world = World(13, nodes=4, spares=2, computes=1)
    run(world, 4)
    decider = world.deciders["c0"]
    assert decider.confirm_lost("h2", "", world.now) == (
        "h2 is connected to the broker: it is not lost"
    )
    assert decider.confirm_lost("x9", "", world.now) == "no job has a fabric-run on x9"
    for name in ("h2", "h3", "h5"):
        world.hosts[name].up = False
    run(world, 6)
    assert not any(world.fences.values())
    decider.set_mode("observe", world.now)
    assert decider.confirm_lost("h2", "", world.now) == "mode observe: nothing is done"
    decider.set_mode("migrate", world.now)
    assert decider.confirm_lost("h2", "the PDU is off", world.now) == ""
    run(world, 0.5)
    [fence] = [one for one in world.fences["c0"] if one.host == "h2"]
    assert fence.reason == "confirmed lost: the PDU is off"
    world.crash_compute("c0")  # what was confirmed outlives it
    world.hosts["h5"].restart()
    run(world, 6)
    assert world.hosts["h0"].running.hosts == ["h0", "h1", "h4", "h5"]
    step = world.step
    run(world, 2)
    assert world.step > step
    assert not world.violations


def test_one_vote_is_told_once_it_has_stood_for_a_while(world):
    decider = settled(world)
    said = HostObservations(
        silent=[SilentHost(host="h0", rails=2, rails_probed=2)], heard=["h1", "h2", "h3"]
    )
    decider.host_observations("h4", SENDER, said, world.now)
    assert not [one for one in decider.decide(world.now) if isinstance(one, JobState)]
    due = decider.wake_at()
    assert due <= world.now + STATE_S
    while due < world.now + STATE_S:
        assert not [one for one in decider.decide(due) if isinstance(one, JobState)]
        due = decider.wake_at()
    [told] = [one for one in decider.decide(due) if isinstance(one, JobState)]
    assert told.state.evidence[0].silent == ["h4"]


def leave(world):
    decider = world.deciders["c0"]
    for name in world.hosts:
        decider.host_job(name, JOB, None, world.now)
    return decider.decide(world.now)


def states(effects):
    return [one.state for one in effects if isinstance(one, JobState)]


def test_a_job_that_has_left_is_shown_for_a_while_and_then_no_more(world):
    effects = leave(world)
    assert Record("job_gone", {"job": JOB}) in effects
    assert None not in states(effects)
    decider = world.deciders["c0"]
    decider.decide(decider.wake_at())
    assert decider.wake_at() == world.now + SHOWN_S
    assert decider.decide(world.now + SHOWN_S - 1) == []
    assert states(decider.decide(world.now + SHOWN_S)) == [None]
    assert decider.wake_at() is None
    assert decider.decide(world.now + 2 * SHOWN_S) == []


def test_a_job_that_comes_again_meanwhile_is_shown_on(world):
    leave(world)
    world.now += SHOWN_S - 1
    further(world, "h1")
    decider = world.deciders["c0"]
    assert None not in states(decider.decide(world.now))
    world.now += SHOWN_S
    assert None not in states(decider.decide(world.now))


LONG = "x" * 250


@pytest.mark.parametrize("name", ["j", LONG])
def test_a_fence_has_an_id_of_its_own_that_is_never_too_long(name):
    lives = ["a", "b", "y" * 64]
    ids = {fence_id(name, host, life) for host in (LONG, "h") for life in lives}
    assert len(ids) == 6
    assert max(map(len, ids)) <= LONGEST_ID
    assert fence_id("gpt", "h1", "i0") == "gpt/h1/i0"


@pytest.mark.parametrize("life", ["", "y" * 65, "a/b", "a b", "a\n", "\u00e9", "../x"])
def test_an_incarnation_that_no_fence_could_name_is_refused(life):
    if life == "../x":
        life = "/" + life
    with pytest.raises(BadMessageError, match="incarnation"):
        parse(HostJob, {"job": "j", "incarnation": life})


def test_hosts_and_jobs_of_the_longest_names_are_fenced(world):
    """A host whose names are as long as they may be, silent to all of its peers."""
    decider, job, life = world.deciders["c0"], "j" * 253, "i" * 64
    names = {f"h{number}": letter * 253 for number, letter in enumerate("abcd")}

    def publish(**changes):
        for old, new in names.items():
            one = world.hosts[old].document(world.now)
            processes = [dataclasses.replace(p, state="joined") for p in one.processes]
            document = dataclasses.replace(
                one, job=job, host=new, incarnation=life, processes=processes, nodes=4, spares=0,
                hears=[], misses=[], **changes,
            )  # fmt: skip
            news = HostJob(job=job, incarnation=life)
            decider.host_job(new, job, news, world.now, document=document)
        return decider.decide(world.now)

    publish(accepted=None, running=0)
    generation = decider._jobs[job].core.generation
    publish(accepted=generation, running=1)
    lost = names["h1"]
    silent = [SilentHost(host=lost, rails=2, rails_probed=2)]
    others = set(names.values()) - {lost}
    for name in others:
        said = HostObservations(silent=silent, heard=sorted(others - {name}))
        decider.host_observations(name, SENDER, said, world.now)
    assert not [one for one in decider.decide(world.now) if isinstance(one, FenceIssued)]
    world.now += Policy().away_s + STEP_UNKNOWN_S
    publish(accepted=generation, running=1, looks=1)
    effects = publish(accepted=generation, running=1, looks=2)
    [fence] = [one.fence for one in effects if isinstance(one, FenceIssued)]
    assert (fence.host, fence.incarnation) == (lost, life)
    assert len(fence.id) <= LONGEST_ID
