"""The connection of fabric-compute to the broker, and when what it has heard is complete.

After each (re)connection the broker sends all retained messages. Nothing is decided before they are
here: a message of our own, published after the subscriptions, has come back, and no retained one
has come for ``QUIET_S``. (mosquitto sends them in order; other brokers may take their time.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import structlog

from compute.intake import Intake, RefusedError
from compute.quota import Clearing
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory, NotConnectedError
from telemetry.broker.limits import PacketTooLargeError
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.documents import ComputeOrder, HostStatus, LedgerHead, parse
from telemetry.messages.envelope import BadMessageError, Message, encode
from telemetry.messages.topics import Kind, Topic, subscription

QUIET_S = 0.2
MARKER_S = 10.0
"""The marker is sent again when it has not come back within this time."""
LOG_EVERY_S = 10.0
"""A refused message of the same topic and reason is logged so often at most."""
READS = (
    Kind.HOST_STATUS,
    Kind.HOST_DOCUMENT,
    Kind.HOST_OBSERVATIONS,
    Kind.HOST_JOB,
    Kind.STOP,
)


class ComputeLink:
    """A `Receiver` of the broker's client.

    Attributes:
        complete: connected, and all retained messages were received.
        syncs: times that it became so.
        ordered: host → the order of ours that the broker holds, as it said or acknowledged.
        viewed: hosts for which the broker holds a view of ours, as it said.
        clearing: of what hosts keep at the broker beyond their shares.
        head: the newest signed head of our ledger that the broker holds; None: none is known.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        name: str,
        factory: MessageFactory,
        intake: Intake,
        news: Callable[[], None],
    ) -> None:
        """``news`` is called after each change. Nothing connects before ``client.run``."""
        self.complete = False
        self.syncs = 0
        self.ordered: dict[str, ComputeOrder] = {}
        self.viewed: set[str] = set()
        self.head: LedgerHead | None = None
        self.prefix = settings.prefix
        self._status = Topic(Kind.COMPUTE_STATUS, name)
        self._name, self._factory, self._intake, self._news = name, factory, intake, news
        self.clearing = Clearing(settings.prefix, self._clear, time.monotonic)
        self._log = structlog.get_logger()
        self._logged: dict[tuple[str, str], float] = {}
        self._marker = 0
        self._marked = asyncio.Event()
        self._retained_at = 0.0
        self._sync_task: asyncio.Task[None] | None = None
        prefix = settings.prefix
        # QoS 0: with QoS 1 a broker queues only so many retained messages for a new subscriber, and
        # drops the rest (mosquitto's default: 1,020 of 3,000). Newer ones replace what is lost.
        filters = [(subscription(kind, prefix), 0) for kind in READS]
        orders = Topic(Kind.COMPUTE_ORDER, name, "+").text(prefix)
        filters += [(self._status.text(prefix), 1), (orders, 1)]
        filters.append((Topic(Kind.COMPUTE_VIEW, name, "+").text(prefix), 0))
        self._ledger = Topic(Kind.COMPUTE_LEDGER, name)
        filters.append((self._ledger.text(prefix), 1))
        self.client = BrokerClient(
            settings, client_id=f"fabric-compute.{name}", factory=factory, status=self._status,
            subscriptions=filters, receiver=self, not_taken=self._not_taken,
            admits=self.clearing.admits,
        )  # fmt: skip

    async def _clear(self, names: Sequence[str]) -> None:
        await self.client.clear(names)

    def publish_head(self, head: LedgerHead) -> None:
        """Retain the newest signed head of the ledger."""
        self.client.set_state(self._ledger, head.model_dump(mode="json"))

    async def publish_order(self, host: str, order: ComputeOrder) -> None:
        """Retain an order at the broker.

        Where the broker does not take it, its fences go out alone: with what the broker holds of
        the jobs, or without.

        Raises:
            NotConnectedError: whether the broker has it is not known.
            BadMessageError: it is too large for us, or for the broker.
        """
        try:
            await self._publish_order(host, order)
        except PacketTooLargeError:
            await self._publish_fences(host, order)
            raise

    async def _publish_order(self, host: str, order: ComputeOrder) -> None:
        topic = Topic(Kind.COMPUTE_ORDER, self._name, host)
        message = self._factory.make(topic, order.model_dump(mode="json"))
        await self.client.publish(topic, encode(message))
        self.ordered[host] = order

    async def _publish_fences(self, host: str, order: ComputeOrder) -> None:
        """Raises ``NotConnectedError``, or `PacketTooLargeError`: not even these fit."""
        held = self.ordered.get(host, ComputeOrder())
        if held.fences == order.fences:
            return
        with contextlib.suppress(PacketTooLargeError):
            await self._publish_order(host, held.model_copy(update={"fences": order.fences}))
            return
        await self._publish_order(host, ComputeOrder(fences=order.fences))

    # -- Receiver -----------------------------------------------------------------------------

    def received(self, message: Message, *, retained: bool) -> None:
        """A message of the right envelope."""
        if retained:
            self._retained_at = time.monotonic()
        topic = message.topic
        if topic.kind is Kind.COMPUTE_VIEW:
            self.viewed.add(topic.name)
            return
        if topic.kind in (Kind.COMPUTE_STATUS, Kind.COMPUTE_ORDER, Kind.COMPUTE_LEDGER):
            self._own(message)
            return
        try:
            self._intake.receive(message, time.monotonic())
        except RefusedError as error:
            self._log_refused(topic.text(self.prefix), error.reason, str(error))
            return
        if topic.kind is Kind.STOP or self._intake.pending:
            self._news()

    def _own(self, message: Message) -> None:
        topic, sender = message.topic, message.sender
        if topic.kind is Kind.COMPUTE_LEDGER:
            self.head = parse(LedgerHead, message.data)
        elif topic.kind is Kind.COMPUTE_ORDER:
            if not self.complete:
                self.ordered[topic.name] = parse(ComputeOrder, message.data)
        elif sender == self._factory.sender:
            if message.sequence >= self._marker > 0:
                self._marked.set()
        elif self.complete and parse(HostStatus, message.data).online:
            self._log.error(
                "another fabric-compute of this name is connected: give it another name",
                name=self._name, incarnation=sender.incarnation,
            )  # fmt: skip

    def cleared(self, topic: Topic) -> None:
        """A retained topic was cleared."""
        if topic.kind is Kind.COMPUTE_ORDER:
            self.ordered.pop(topic.name, None)
        elif topic.kind is Kind.COMPUTE_VIEW:
            self.viewed.discard(topic.name)
        elif topic.kind not in (Kind.COMPUTE_STATUS, Kind.COMPUTE_LEDGER):
            self._intake.clear(topic, time.monotonic())
        self._news()

    def refused(self, topic: str, reason: str) -> None:
        """The client refused a message by its envelope, or by what this object raised."""
        self._intake.refuse("envelope" if "no topic of ours" not in reason else "topic")
        self._log_refused(topic, "envelope", reason)

    def _not_taken(self, topic: Topic, reason: str) -> None:
        """A state of ours that the broker does not take; it keeps the one before, if any."""
        self._log.error("not sent: the broker does not take it",
                        topic=topic.text(self.prefix), reason=reason)  # fmt: skip

    def connection_changed(self, *, connected: bool, reason: str) -> None:
        """Begin to wait for the retained messages, or stop to decide."""
        if self._sync_task is not None:
            self._sync_task.cancel()
            self._sync_task = None
        was, self.complete = self.complete, False
        if not connected:
            self.clearing.reset()
        if connected:
            self._intake.connected()
            self.ordered.clear()
            self.viewed.clear()
            self._log.info("connected to the broker; its retained messages are awaited")
            if self.client.notes:
                self._log.warning("limits of the broker", limits=" ".join(self.client.notes))
            self._sync_task = asyncio.create_task(self._sync())
        elif was or reason:
            self._log.warning("no connection to the broker: nothing is decided", reason=reason)
        self._news()

    async def _sync(self) -> None:
        online = {"online": True, "intended": False}
        self._marked.clear()
        while not self._marked.is_set():
            marker = self._factory.make(self._status, online)
            self._marker = marker.sequence
            try:
                await self.client.publish(self._status, encode(marker))
                async with asyncio.timeout(MARKER_S):
                    await self._marked.wait()
            except NotConnectedError:
                return  # `connection_changed` begins again.
            except TimeoutError:
                self._log.warning("the broker does not send our own message back", again=True)
        left = QUIET_S
        while left > 0:
            await asyncio.sleep(left)
            left = self._retained_at + QUIET_S - time.monotonic()
        self._marker = 0
        self.complete = True
        self.syncs += 1
        self._log.info("all retained messages are here", hosts=len(self._intake.statuses))
        self._news()

    def _log_refused(self, topic: str, reason: str, text: str) -> None:
        now, key = time.monotonic(), (topic, reason)
        if now - self._logged.get(key, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        if len(self._logged) > 10_000:
            self._logged.clear()
        self._logged[key] = now
        self._log.warning("message refused", topic=topic, reason=reason, error=text)


__all__ = ["BadMessageError", "ComputeLink", "NotConnectedError"]
