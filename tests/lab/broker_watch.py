"""Prints what hosts say at a broker, one JSON object a line: (clock, topic, data).

``python broker_watch.py ADDRESS PORT``; CLOCK_MONOTONIC ns. Run in the broker's namespace.
"""

import asyncio
import json
import sys
import time

from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Sender
from telemetry.messages.topics import Kind, Topic, subscription


class Printer:
    def received(self, message, *, retained):
        self._print([time.monotonic_ns(), message.topic.text(), message.data])

    def cleared(self, topic):
        self._print([time.monotonic_ns(), topic.text(), None])

    def refused(self, topic, reason):
        self._print([time.monotonic_ns(), topic, reason])

    def connection_changed(self, *, connected, reason):
        self._print([time.monotonic_ns(), "", reason])

    def _print(self, row):
        print(json.dumps(row), flush=True)


async def watch(address, port):
    kinds = [kind for kind in Kind if kind.value.startswith("host.")]
    await BrokerClient(
        BrokerSettings(address, port), client_id="watch",
        factory=MessageFactory(Sender("watch", "watch")),
        status=Topic(Kind.COMPUTE_STATUS, "watch"),
        subscriptions=[(subscription(kind), 1) for kind in kinds], receiver=Printer(),
    ).run()  # fmt: skip


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], int(sys.argv[2])))
