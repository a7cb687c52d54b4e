"""A real fabric-compute at a real broker, and somebody who wants it to end.

What he has published stays at the broker, so it is started once more, too.
"""

import asyncio
import contextlib
import json
import uuid

import pytest
from compute_world import Compute, Mosquitto, settings
from hostile_messages import payload

from compute.store import Store
from fabric_train.messages.documents import AgentDocument, ProcessState, to_data
from telemetry.broker.once import publish_once
from telemetry.messages.topics import Kind, Topic

pytestmark = [pytest.mark.lab, pytest.mark.filterwarnings("default::ResourceWarning")]
LONG_S = 60.0
EVENT, JOB = Topic(Kind.HOST_EVENT, "h1"), Topic(Kind.HOST_JOB, "h1", "gpt")
DOCUMENT = AgentDocument(
    "gpt", "h1", "r", 1, 0, 1, "10.0.0.1:1", "10.0.0.1:2", "t", [ProcessState("p", "warm")]
)
GENERATION = {
    "number": 3, "base": 2, "slots": ["p"], "hosts": [], "electorate": ["h1/r"],
    "voters": ["h1/r"], "members": [], "store": "10.0.0.1:2", "formed": True,
}  # fmt: skip


def event(value):
    return EVENT, payload(EVENT, f'{{"kind": "x", "fields": {{"x": {value}}}}}', uuid.uuid4().hex)


def job(**changes):
    document = to_data(DOCUMENT) | changes
    news = {"job": "gpt", "incarnation": "r", "uid": 1000, "document": document}
    return JOB, payload(JOB, json.dumps(news), uuid.uuid4().hex)


ATTACKS = {
    "an event that the ledger cannot write": [event("NaN")],
    "events as deep as can be read": [
        event("[" * depth + "]" * depth) for depth in range(880, 1000, 2)
    ],
    "a generation without hosts": [job(accepted=GENERATION)],
    "text that is none": [job(failed="\ud800", address="\ud800", processes=[])],
}


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def compute(tmp_path, broker):
    one = Compute(tmp_path, broker, "c0")
    (one.directory / "state").mkdir(mode=0o750)
    one.call("promote", "migrate")
    one.start()
    yield one
    if one.process.poll() is None:
        one.stop()


async def ready(one):
    async with asyncio.timeout(LONG_S):
        while not await asyncio.to_thread(one.is_ready):
            assert one.process.poll() is None, one.log.read_text()[-3000:]
            await asyncio.sleep(0.05)


async def works(one, broker):
    """An event that comes last is in the ledger."""
    mark = uuid.uuid4().hex
    await say(broker, [event(f'"{mark}"')])
    async with asyncio.timeout(LONG_S):
        with contextlib.closing(Store(one.directory / "state/compute.db", read_only=True)) as store:
            while not store.mentions(mark, 1):
                assert one.process.poll() is None, one.log.read_text()[-3000:]
                await asyncio.sleep(0.05)


async def say(broker, messages):
    for topic, said in messages:
        await publish_once(settings(broker), "mallory", topic, said, LONG_S)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_it_goes_on_and_starts_again(attack, compute, broker):
    await ready(compute)
    await works(compute, broker)
    await say(broker, ATTACKS[attack])
    await works(compute, broker)
    compute.kill()
    compute.start()
    await ready(compute)
    await works(compute, broker)
