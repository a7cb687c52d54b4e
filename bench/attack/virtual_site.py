"""Hosts and a fabric-compute in virtual time: real messages, real decisions, a real store.

What a broker does is done by calls: each message is encoded and decoded once. A cycle is one of
``compute.service``: what has come, ``decide``, one transaction, and only then the orders.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.migrate.fleet import Happened, Place, SimulatedHost
from compute.batch import batch_of
from compute.board import JobBoard
from compute.decide.decider import Decider
from compute.decide.effects import Effect, FenceIssued, JobState, Order
from compute.decide.policy import Policy
from compute.events import EventLink
from compute.intake import Intake, RefusedError
from compute.record_budget import RecordBudget
from compute.store import NewRecord, Store, StoreError
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import Message, Sender, decode, encode
from telemetry.messages.topics import Kind, Topic

SETTINGS = BrokerSettings("127.0.0.1")
"""Nothing connects here."""
EVENTS_AT_ONCE = 500
"""As ``compute.service`` has it."""


class VirtualHost(SimulatedHost):
    """A host whose messages are taken by calls. ``outbox``: the newest of each topic."""

    def __init__(self, place: Place, happened: Happened) -> None:
        super().__init__(SETTINGS, place, happened)
        self.factory = MessageFactory(Sender("boot", self._incarnation))
        self.outbox: dict[Topic, Mapping[str, object]] = {}
        self.outbox[Topic(Kind.HOST_STATUS, place.host)] = {"online": True, "intended": False}

    def _set(self, topic: Topic, data: Mapping[str, object]) -> None:
        if not self.frozen:
            self.outbox[topic] = data


class VirtualSite:
    """A fabric-compute, and the hosts of one job and others.

    Attributes:
        now: virtual seconds; whoever runs the site moves them.
        fences: that were issued.
        not_stored: transactions that the disk did not take.
        not_kept: events that are not acknowledged, for the same reason.
    """

    def __init__(self, directory: Path, places: Sequence[Place]) -> None:
        self.now = 0.0
        self.happened = Happened(lambda: self.now)
        self.core = Decider("c0", Policy(budget_percent=50, budget_most=100))
        self.core.set_mode("migrate", 0.0)
        self.intake, self.board = Intake(self.core), JobBoard()
        self.store = Store(directory / "compute.db")
        self.events = EventLink(
            SETTINGS, "c0", MessageFactory(Sender("boot", uuid.uuid4().hex)), self.intake,
            self.store, lambda: None, lambda: self.now,
        )  # fmt: skip
        self.hosts = {place.host: VirtualHost(place, self.happened) for place in places}
        for host in self.hosts.values():
            host.publish()
        self.fences: list[str] = []
        self.not_stored = self.not_kept = 0
        self._compute = MessageFactory(Sender("boot", uuid.uuid4().hex))
        self._records = RecordBudget()
        self._unstored: list[Effect] = []

    def say(self, message: Message) -> bool:
        """A message of anybody comes from the broker. Whether it counts."""
        arrived = decode(encode(message), message.topic)
        try:
            if message.topic.kind is Kind.HOST_EVENT:
                self.events.received(arrived, retained=False)
            else:
                self.intake.receive(arrived, self.now)
        except RefusedError:
            return False
        except OSError:  # It is not acknowledged.
            self.not_kept += 1
            return False
        return True

    def cycle(self) -> None:
        """What all hosts have to say, a decision, a transaction, and orders."""
        for host in self.hosts.values():
            outbox, host.outbox = host.outbox, {}
            for topic, data in outbox.items():
                if not self.say(host.factory.make(topic, dict(data))):
                    raise RuntimeError(f"{topic.text()} is refused")
        if not self._unstored:
            self._unstored = self._records.kept(
                self.core.decide(self.now), self.board, self.now, full=not self.store.reserve.held
            )
        if self._carry_out():
            self._record_events()

    def _carry_out(self) -> bool:
        batch = batch_of(self._unstored, self.board)
        try:
            self.store.commit(batch.fences, batch.records, batch.states, (), batch.gone)
        except StoreError:
            self.not_stored += 1
            return False
        effects, self._unstored = self._unstored, []
        for one in effects:
            match one:
                case FenceIssued(fence):
                    self.fences.append(fence.host)
                case JobState(job, state):
                    self.board.update(job, state)
                case Order(host, order) if host in self.hosts:
                    topic = Topic(Kind.COMPUTE_ORDER, "c0", host)
                    message = self._compute.make(topic, order.model_dump(mode="json"))
                    self.hosts[host].received(decode(encode(message), topic), retained=False)
        return True

    def _record_events(self) -> None:
        self.store.reserve.take()
        left_out = [
            one.take_left_out(self.now) for one in (self.events.budget, self._records.hosts)
        ]
        try:
            events = self.store.events(EVENTS_AT_ONCE)
            events += [
                NewRecord("left_out", {"host": host, "count": count})
                for counts in left_out
                for host, count in counts.items()
            ]
            self.store.commit((), events)
        except StoreError:
            self.not_stored += 1

    def runs(self, job: str, generation: int) -> int:
        """How many hosts have started this generation."""
        if self.happened.wrong:
            raise RuntimeError(self.happened.wrong[0])
        return len(self.happened.running.get((job, generation), ()))
