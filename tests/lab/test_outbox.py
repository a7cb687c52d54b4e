"""Events of a host whose broker is gone for an hour: real outbox, mosquitto and ledger."""

import asyncio
import contextlib
import itertools
import json
import time

import pytest

from compute.decide.decider import Decider
from compute.decide.policy import Policy
from compute.events import EventLink
from compute.intake import Intake
from compute.store import Store
from fabricd.escalate.outbox import Outbox, StoreThread
from fabricd.escalate.outbox_store import OutboxStore, Waiting
from lab.services.mosquitto import Mosquitto
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Sender, encode
from telemetry.messages.topics import Kind, Topic, subscription

pytestmark = pytest.mark.timeout(300)
LONG_S = 120.0
HOUR = 3_600
"""Events of an hour, one a second."""
TOPIC = Topic(Kind.HOST_EVENT, "h0")


class Host:
    """fabricd's outbox and its connection. ``kill`` leaves what the file has."""

    def __init__(self, directory, settings):
        self.store = OutboxStore(directory / "outbox.db")
        self.factory = MessageFactory(Sender("boot", f"life-{time.monotonic_ns()}"))
        self.client = BrokerClient(
            settings, client_id="fabricd-h0", factory=self.factory,
            status=Topic(Kind.HOST_STATUS, "h0"), subscriptions=[], receiver=self,
        )  # fmt: skip
        self._thread = StoreThread()
        self.outbox = Outbox(self.store, self._thread, self._publish)
        self.tasks = [asyncio.create_task(one.run()) for one in (self.client, self.outbox)]

    async def _publish(self, payload):
        await self.client.publish(TOPIC, payload)

    def connection_changed(self, *, connected, reason):
        self.outbox.connection_changed(connected=connected)

    def offer(self, number):
        data = {"kind": "peer", "text": f"event {number}", "fields": {"number": number}}
        message = self.factory.make(TOPIC, data)
        self.outbox.offer(Waiting(message.id, 2, encode(message)))

    async def kill(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._thread.call(self.store.close)  # it may be in the file


async def until(condition, what):
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def ledger(directory, settings):
    """What fabric-compute has of hosts' events; its own session outlives the broker."""
    store = Store(directory / "compute.db")
    factory = MessageFactory(Sender("boot", "compute"))
    intake = Intake(Decider("c0", Policy()))
    link = EventLink(settings, "c0", factory, intake, store, lambda: None)
    task = asyncio.create_task(link.client.run())
    await until(lambda: link.client.connected, "a session")
    yield store
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.close()


# In the broker's file a subscription is the client's id and the filter, one behind the other.
SESSION = b"fabric-compute.c0.events" + subscription(Kind.HOST_EVENT).encode()


@pytest.mark.nightly
async def test_an_hour_without_a_broker_loses_and_doubles_no_event(tmp_path):
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    settings = BrokerSettings("127.0.0.1", broker.port)
    try:
        async with ledger(tmp_path, settings) as store:
            await until(lambda: broker.has_stored(SESSION), "it is on disk")
            broker.kill()
            host = Host(tmp_path, settings)
            for number in range(HOUR):
                host.offer(number)
            await until(lambda: host.store.depth.messages == HOUR, "all are on the host's disk")
            await host.kill()
            host = Host(tmp_path, settings)
            broker.start()
            # It goes once more in the middle: what is under way comes again, under its old id.
            await until(lambda: len(store.events(HOUR)) > HOUR // 4, "some are there")
            broker.kill()
            broker.start()
            await until(lambda: len(store.events(2 * HOUR)) >= HOUR, "all are there")
            await until(lambda: host.outbox.depth.messages == 0, "all are acknowledged")
            found = [record.fields["fields"]["number"] for record in store.events(2 * HOUR)]
            assert sorted(found) == list(range(HOUR)), "each once"
            assert found[:8] == list(range(8)), "the oldest first"
            late = sum(after < before for before, after in itertools.pairwise(found))
            assert late <= 8, "out of order are at most those that were under way"
            assert host.outbox.depth.dropped == 0
            entries = store.commit(records=store.events(2 * HOUR))
            assert len(entries) == HOUR
            assert json.loads(entries[0].line)["kind"] == "host_event"
            await host.kill()
    finally:
        broker.stop()
