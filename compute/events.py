"""Events of hosts' timelines, for the ledger: each once by its id, and none lost.

A connection of its own with a persistent session: the broker keeps events while fabric-compute is
away, and each is acknowledged only once it is on disk. What comes twice is known by its id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import structlog

from compute.event_budget import EventBudget, stored_bytes
from compute.intake import Intake, RefusedError
from compute.store import Store, StoreError
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Message
from telemetry.messages.topics import Kind, Topic, subscription


class EventLink:
    """A `Receiver` of events."""

    def __init__(
        self,
        settings: BrokerSettings,
        name: str,
        factory: MessageFactory,
        intake: Intake,
        store: Store,
        news: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``news`` is called after an event was stored. ``clock``: monotonic seconds."""
        self.budget = EventBudget()
        self._intake, self._store, self._news = intake, store, news
        self._clock = clock
        self._log = structlog.get_logger()
        self.client = BrokerClient(
            settings, client_id=f"fabric-compute.{name}.events", factory=factory, status=None,
            subscriptions=[(subscription(Kind.HOST_EVENT, settings.prefix), 1)], receiver=self,
            persistent=True,
        )  # fmt: skip

    def received(self, message: Message, *, retained: bool) -> None:  # noqa: ARG002
        """Store an event. Raises ``OSError``: it is not acknowledged, and comes again.

        Over its host's budget it is counted, and nothing else.
        """
        try:
            event = self._intake.event(message)
        except RefusedError as error:
            self._log.warning("event refused", source=message.topic.source, error=str(error))
            return
        fields = {"host": message.topic.owner, "event": event.kind, "text": event.text,
                  "fields": event.fields}  # fmt: skip
        size = stored_bytes(message.id, json.dumps(fields))
        if not self.budget.spend(message.topic.owner, size, self._clock()):
            return
        try:
            if self._store.add_event(message.id, fields):
                self._news()
        except StoreError as error:
            raise OSError(str(error)) from None

    def cleared(self, topic: Topic) -> None:
        """Events are not retained."""

    def refused(self, topic: str, reason: str) -> None:
        """No message, by its envelope."""
        self._intake.refuse("envelope")
        self._log.warning("event refused", topic=topic, error=reason)

    def connection_changed(self, *, connected: bool, reason: str) -> None:
        """The other connection tells of it."""
