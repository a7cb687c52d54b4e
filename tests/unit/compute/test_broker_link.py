"""fabric-compute's connection: what goes out where the broker does not take an order."""

import asyncio

import aiomqtt
import pytest

from compute.decide.decider import Decider
from compute.decide.policy import Policy
from compute.intake import Intake
from compute.link import ComputeLink
from compute.quota import MOST_TOPICS
from telemetry.broker.inbox import Inbox
from telemetry.broker.interface import MessageFactory
from telemetry.broker.limits import PacketTooLargeError
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.documents import ComputeOrder, Fence
from telemetry.messages.envelope import Sender, decode

LIMIT = 8192
FENCE = Fence(id="f1", job="gpt", host="h3", incarnation="x", reason="lost")


class Broker:
    """Takes payloads of some size."""

    def __init__(self, limit=LIMIT):
        self.limit, self.orders = limit, []

    async def publish(self, topic, payload):
        if len(payload) > self.limit:
            raise PacketTooLargeError(len(payload), self.limit, announced=True)
        self.orders.append(ComputeOrder(**decode(payload, topic).data))


def link_to(broker):
    made = ComputeLink(
        BrokerSettings("127.0.0.1"), "c0", MessageFactory(Sender("b", "i")),
        Intake(Decider("c0", Policy())), lambda: None,
    )  # fmt: skip
    made.client.publish = broker.publish
    return made


def order(size, *fences):
    return ComputeOrder(fences=list(fences), jobs={"gpt": {"generation": {"packed": "x" * size}}})


async def test_the_fences_of_an_order_that_is_too_large_go_out_with_the_jobs_of_before():
    broker = Broker()
    link = link_to(broker)
    small, large = order(100), order(30_000, FENCE)
    await link.publish_order("h0", small)
    with pytest.raises(PacketTooLargeError, match=r"30\d\d\d B.*8192 B"):
        await link.publish_order("h0", large)
    assert broker.orders[-1] == ComputeOrder(fences=[FENCE], jobs=small.jobs)
    assert link.ordered["h0"] == broker.orders[-1], "what the broker holds"
    with pytest.raises(PacketTooLargeError):
        await link.publish_order("h0", large)
    assert len(broker.orders) == 2, "they are there already"


async def test_where_not_even_that_fits_the_fences_go_out_alone():
    broker = Broker()
    link = link_to(broker)
    await link.publish_order("h0", order(7_500))
    with pytest.raises(PacketTooLargeError):
        await link.publish_order(
            "h0", order(30_000, FENCE.model_copy(update={"reason": "y" * 500}))
        )
    assert [one.id for one in broker.orders[-1].fences] == ["f1"]
    assert broker.orders[-1].jobs == {}


async def test_an_order_without_fences_that_is_too_large_changes_nothing():
    broker = Broker(limit=200)
    link = link_to(broker)
    with pytest.raises(PacketTooLargeError):
        await link.publish_order("h0", order(30_000))
    assert broker.orders == []
    assert link.ordered == {}


async def test_what_is_beyond_a_hosts_share_is_cleared_unread_and_its_clearing_is_no_news():
    link, cleared, done = link_to(Broker()), [], asyncio.Event()

    async def clear(names):
        cleared.extend(names)
        done.set()

    link.client.clear = clear
    inbox = Inbox(lambda _: True, admits=link.client._admits)
    names = [f"fabric/v1/host/h9/job/{number} !" for number in range(MOST_TOPICS + 2)]
    for name in names:
        inbox.put_nowait(aiomqtt.Message(name, b"x", 0, False, 1, None))
    assert inbox.qsize() == MOST_TOPICS
    running = asyncio.create_task(link.clearing.run())
    await done.wait()
    running.cancel()
    assert cleared == names[MOST_TOPICS:]
    refused = link._intake.refused
    for payload in (b"", b"x"):
        link.client._handle(aiomqtt.Message(names[0], payload, 0, False, 1, None))
        assert refused["topic"] == len(payload)
    link.connection_changed(connected=False, reason="")
    inbox.put_nowait(aiomqtt.Message(names[-1], b"x", 0, False, 1, None))
    assert inbox.qsize() == MOST_TOPICS + 1, "another connection brings all of it again"
