"""A job's own user, by ``jobs.sock`` of his host: fabricd hands on what he says as it is.

A document whose generation had slots without hosts ended each fabric-compute of the site, and again
at each start, for the broker retains it.
"""

import copy
import dataclasses
import json
import random

import pytest
from job_world import JOB, USER, World
from test_partitions import run

from compute.decide.decider import Decider
from compute.decide.effects import JobState, Order, Record
from compute.decide.policy import Policy
from compute.intake import Intake, RefusedError
from compute.ledger import canonical
from fabric_train.messages.documents import (
    MOST_RANKS,
    AgentDocument,
    DocumentError,
    JobGeneration,
    Member,
    ProcessState,
    parse,
    to_data,
)
from fabric_train.messages.packed import pack
from telemetry.messages.envelope import Message, Sender
from telemetry.messages.topics import Kind, Topic

GENERATION = JobGeneration(
    3, 2, ["h1/r/p0"], ["h1"], ["h1/r"], ["h1/r"],
    [Member("h1", "r", "10.0.0.1:1", "10.0.0.1:2", "t")], "10.0.0.1:2", True,
)  # fmt: skip
DOCUMENT = AgentDocument(
    "gpt", "h1", "r", 1, 0, 1, "10.0.0.1:1", "10.0.0.1:2", "t",
    [ProcessState("h1/r/p0", "warm")], accepted=GENERATION,
)  # fmt: skip
SAID = [
    {"hosts": []},
    {"hosts": ["h1", "h1"]},
    {"slots": [], "hosts": []},
    {"slots": ["h1/r/p0"] * 2, "hosts": ["h1"] * 2},
    {"number": -5},
    {"number": 2},
    {"base": -1},
]


def told(intake, decider, document, now, number=1):
    """The effects of a decision after a document that is well formed; it may be refused."""
    data = {"job": "gpt", "incarnation": "r", "uid": 1000, "document": document}
    topic = Topic(Kind.HOST_JOB, "h1", "gpt")
    message = Message(topic, Sender("b", "i"), number, json.loads(json.dumps(data)))
    try:
        intake.receive(message, now)
    except RefusedError:
        return None
    return decider.decide(now)


def decider_and_intake():
    decider = Decider("c", Policy())
    decider.set_mode("migrate", 0.0)
    return decider, Intake(decider)


@pytest.mark.parametrize("changes", SAID, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_a_generation_that_cannot_be_is_refused_and_decisions_go_on(changes, packed):
    decider, intake = decider_and_intake()
    wrong = to_data(dataclasses.replace(DOCUMENT, accepted=None))
    generation = to_data(GENERATION) | changes
    if packed:
        text = json.dumps(generation)
        generation = {"number": generation["number"], "packed": pack(text)}
    assert told(intake, decider, wrong | {"accepted": generation}, 0.1) is None
    assert intake.refused["data"] == 1
    assert told(intake, decider, to_data(DOCUMENT), 0.2, number=2)


def test_a_generation_has_no_more_ranks_than_a_cluster():
    """Packed, 0.5 MB are 4 MiB: each document kept fabric-compute from others for seconds."""
    short = to_data(GENERATION)
    del short["hosts"], short["electorate"], short["voters"]
    for ranks, is_taken in ((MOST_RANKS, True), (MOST_RANKS + 1, False)):
        slots = [f"0/{number}" for number in range(ranks)]
        value = {"number": 3, "packed": pack(json.dumps(short | {"slots": slots}))}
        document = to_data(dataclasses.replace(DOCUMENT, accepted=None)) | {"accepted": value}
        if is_taken:
            assert len(parse(AgentDocument, document).accepted.slots) == ranks
        else:
            with pytest.raises(DocumentError, match=f"has {ranks} ranks"):
                parse(AgentDocument, document)


def test_what_he_says_of_his_failures_does_not_fill_the_ledger():
    """Of 20 lives, each with 0.4 MB of reason, the ledger kept 8 MB for ever."""
    decider, intake = decider_and_intake()
    kept = 0
    for life in range(20):
        process = ProcessState(f"p{life}", "ended", reason="x" * 400_000)
        document = dataclasses.replace(
            DOCUMENT, failed="x" * 400_000 if life % 2 else "", processes=[process]
        )
        effects = told(intake, decider, to_data(document), life + 0.1, number=2 * life + 1)
        kept += sum(len(canonical(one.fields)) for one in effects if isinstance(one, Record))
        intake.clear(Topic(Kind.HOST_JOB, "h1", "gpt"), life + 0.5)
        decider.decide(life + 0.6)
    assert 0 < kept < 20 * 8192


VALUES = (
    "", "\ud800", "x" * 3000, -1, 0, 1, 2, 3, 99, (1 << 63) - 1, -(1 << 62), True, False, None,
    [], {}, "h0", "h1", "h0/1", "a/b/c", "h0 x", "/", [""], ["h0"], "warm", "ended", "stands",
)  # fmt: skip


def places(value, at=()):
    yield at
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, one in inner:
        yield from places(one, (*at, key))


def changed(data, pick):
    data = copy.deepcopy(data)
    for _ in range(pick.choice([1, 1, 1, 2, 4])):
        *way, last = pick.choice([at for at in places(data) if at])
        holder = data
        for key in way:
            holder = holder[key]
        old = holder[last]
        if isinstance(old, list) and old and pick.random() < 0.5:
            pick.choice([old.pop, lambda old=old: old.append(old[0])])()
        else:
            same = [one for one in VALUES if type(one) is type(old)]
            holder[last] = copy.deepcopy(pick.choice(same if pick.random() < 0.9 else VALUES))
    return data


@pytest.mark.parametrize("seed", range(4))
def test_no_document_of_his_ends_the_decisions(seed):
    """Hosts of a job that trains say anything that has the form of a document."""
    pick = random.Random(seed)
    world = World(seed, computes=1, key=pick.choice(["", "k"]))
    run(world, pick.choice([1, 4]))
    decider, taken = world.deciders["c0"], 0
    intake = Intake(decider)
    for number in range(300):
        host = pick.choice([name for name in world.hosts if name[0] == "h"])
        data = changed(to_data(world.hosts[host].document(world.now)), pick)
        news = {"job": JOB, "incarnation": str(data.get("incarnation")), "uid": USER,
                "document": data}  # fmt: skip
        message = Message(Topic(Kind.HOST_JOB, host, JOB), Sender("b", "i"), number, news)
        try:
            intake.receive(message, world.now)
        except RefusedError:
            continue
        taken += 1
        world.now += pick.choice([0.01, 0.3, 2, 10])
        for effect in decider.decide(world.now):
            if isinstance(effect, JobState) and effect.state is not None:
                effect.state.model_dump_json()
            elif isinstance(effect, Record):
                canonical(effect.fields)
            elif isinstance(effect, Order):
                json.dumps(effect.order.model_dump(mode="json"))
    assert taken > 50, "most documents were refused: nothing was tried"
