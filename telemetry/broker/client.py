"""A connection to the broker that comes back: birth, last will, retained state, events.

Everything runs on one event loop. ``run`` connects, publishes the birth (``HostStatus`` online),
subscribes, publishes all retained state, and begins again after a loss, with full jitter.

Sequence numbers: the last will has the number after that of its birth, so that in the order of
numbers, too, it comes after it. A receiver compares numbers of one life and *one topic* only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import aiomqtt
from aiomqtt.client import Properties  # type: ignore[attr-defined]  # paho's, which it takes

from telemetry.broker.backoff import FullJitter
from telemetry.broker.ending import discard, disconnect, is_absent, reason_of
from telemetry.broker.inbox import Inbox
from telemetry.broker.interface import MessageFactory, NotConnectedError, Receiver
from telemetry.broker.latest import Data, LatestStates
from telemetry.broker.library_hooks import end_is_known, hook, refused_connection
from telemetry.broker.limits import (
    BrokerLimits,
    PacketSizes,
    PacketTooLargeError,
    publish_bytes,
    subscribe_bytes,
)
from telemetry.broker.settings import BrokerSettings, BrokerSettingsError, plain_address
from telemetry.broker.socket_hooks import SocketHooks
from telemetry.broker.tls import tls_context
from telemetry.messages import topics
from telemetry.messages.envelope import MAX_BYTES, BadMessageError, decode, encode
from telemetry.messages.topics import Topic

CONNECT_PACKET = 1
CONNECT_S = 5.0
"""Limit of each step of a connection attempt: CONNACK, SUBACK."""
GOODBYE_S = 5.0
AT_ONCE = 16
"""Messages that are handled before others of the event loop have their turn."""
STATES_IN_FLIGHT = 8
"""With the callers' events under what brokers allow by default: mosquitto 20 in flight."""
URGENT = frozenset({topics.Kind.HOST_OBSERVATIONS, topics.Kind.STOP})
"""Handled before others: what is said of lost hosts, and that nothing may be done."""
STABLE_S = 5.0
"""A connection that lasted so long did not fail: the next attempt comes soon."""
SESSION_S = 7 * 86_400
"""How long a broker keeps a persistent session (MQTT 5) of a client that is away."""
PACKET_BYTES = MAX_BYTES + 65_536
"""Largest packet that we let a broker send (MQTT 5): a message, its topic and properties."""
_LOG = logging.getLogger("telemetry.broker")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False


class BrokerClient:
    """One client of one broker.

    Attributes:
        connected: birth and subscriptions are acknowledged.
        connections: times that it became connected.
        rejected: PUBLISHes that the broker refused by a reason code (MQTT 5), e.g. by its ACL.
        superseded: received messages of retained topics that a newer one replaced before they were
            read.
        limits: what the present connection's broker announced, or the last one's.
        oversize: topics whose newest state the broker does not take, and both sizes.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        client_id: str,
        factory: MessageFactory,
        status: Topic | None,
        subscriptions: Sequence[tuple[str, int]],
        receiver: Receiver,
        persistent: bool = False,
        not_taken: Callable[[Topic, str], None] | None = None,
        admits: Callable[[str, int], bool] | None = None,
    ) -> None:
        """Prepare; ``run`` connects.

        Args:
            settings: where the broker is.
            client_id: unique at the broker, the same in each life of this sender.
            factory: numbers our messages.
            status: the topic of birth, last will and goodbye; None: another client says them.
            subscriptions: (filter, QoS) pairs.
            receiver: is called with what comes.
            persistent: the broker keeps the session, and each QoS 1 message is acknowledged only
                after ``received`` returned: at least once, also over our ``kill -9``.
            not_taken: is called with a message of ours that the broker does not take, and why,
                once for each topic until the reason changes; None: ``receiver.refused`` is.
            admits: is asked of each message that comes, by topic and size in bytes, before any
                memory is spent on it; False drops it. Not with ``persistent``.
        """
        self.settings = settings
        self.connected = False
        self.connections = 0
        self.rejected = 0
        self.superseded = 0
        self.states = LatestStates()
        self.limits = BrokerLimits()
        self.oversize: dict[Topic, PacketTooLargeError] = {}
        self._sizes = PacketSizes()
        self._late: set[Topic] = set()
        """Topics of packets in question: sent when all others are acknowledged."""
        self._reported: dict[Topic, str] = {}
        self._not_taken = not_taken or (
            lambda topic, reason: receiver.refused(topic.text(settings.prefix), reason)
        )
        self._client_id, self._factory, self._status = client_id, factory, status
        self._subscriptions = list(subscriptions)
        self._receiver, self._persistent, self._admits = receiver, persistent, admits
        self._backoff = FullJitter(random.SystemRandom().random)
        self._attempt = 0
        self._goodbye_said = False
        self._client: aiomqtt.Client | None = None
        self._wake = asyncio.Event()
        self._gone: asyncio.Future[None] | None = None
        """Done when the present connection has ended."""

    # -- sending ------------------------------------------------------------------------------

    def set_state(self, topic: Topic, data: Data | None) -> bool:
        """Keep ``data`` retained on ``topic``; None clears it. False: unchanged.

        ``data`` is kept as it is: whoever changes it afterwards changes nothing at the broker.
        """
        changed = self.states.set(topic, data)
        if changed:
            self._wake.set()
        return changed

    async def publish(self, topic: Topic, payload: bytes) -> None:
        """Publish with QoS 1 and wait for the acknowledgement.

        Raises:
            NotConnectedError: not connected, or the connection ended before the acknowledgement.
            PacketTooLargeError: the broker does not take it.
        """
        client = self._client
        if client is None or not self.connected:
            raise NotConnectedError("not connected")
        await self._publish(client, topic, payload)

    async def clear(self, names: Sequence[str]) -> None:
        """Take retained messages of others away, by topics, which may be malformed.

        Raises:
            NotConnectedError: not connected, or no longer.
        """
        client = self._client
        if client is None or not self.connected:
            raise NotConnectedError("not connected")
        try:
            for name in names:
                await client.publish(name, b"", 0, retain=True)
        except aiomqtt.MqttError as error:
            raise NotConnectedError(str(error)) from None

    async def assert_online(self) -> None:
        """Publish the birth again: somebody else's message stands on our status topic.

        Raises:
            NotConnectedError: not connected; the next connection begins with a birth.
        """
        if self._status is None:
            return
        data = {"online": True, "intended": False}
        await self.publish(self._status, encode(self._factory.make(self._status, data)))

    async def goodbye(self) -> None:
        """Say that we leave on purpose. Call it while ``run`` runs, and then cancel ``run``.

        Unless the broker acknowledges it, ``run`` ends without DISCONNECT: the last will is sent.
        """
        client = self._client
        if client is None:
            return
        data = {"online": False, "intended": True}
        if self._status is None:
            self._goodbye_said = True
            return
        payload = encode(self._factory.make(self._status, data))
        with contextlib.suppress(NotConnectedError, BadMessageError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._publish(client, self._status, payload)
                self._goodbye_said = True

    # -- the connection -----------------------------------------------------------------------

    async def run(self) -> None:
        """Connect and reconnect until cancelled."""
        while True:
            began: float | None = None
            absent = False
            try:
                client, inbox, birth = await self._connect()
                began = time.monotonic()
                try:
                    reason = await self._serve(client, inbox, birth)
                finally:
                    self._end_connection()
                    await disconnect(client, politely=self._goodbye_said)
            except (aiomqtt.MqttError, BrokerSettingsError, NotConnectedError, OSError) as error:
                reason, absent = reason_of(error), is_absent(error)
            self._receiver.connection_changed(connected=False, reason=reason)
            if began is not None and time.monotonic() - began >= STABLE_S:
                self._backoff.succeeded()
            await asyncio.sleep(self._backoff.next_s(absent=absent))

    async def _connect(self) -> tuple[aiomqtt.Client, Inbox, bytes]:
        """A client whose CONNECT was accepted, its inbox, and the payload of its birth."""
        settings, factory = self.settings, self._factory
        host, context = settings.host, None
        self._goodbye_said = False
        if settings.tls:
            context = await asyncio.to_thread(tls_context, settings)
        else:
            host = await self._plain_host()
        birth, will = b"", None
        if (status := self._status) is not None:
            birth = encode(factory.make(status, {"online": True, "intended": False}))
            payload = encode(factory.make(status, {"online": False, "intended": False}))
            will = aiomqtt.Will(status.text(settings.prefix), payload, 1, retain=True)
        inbox = Inbox(self._keeps_newest, self._is_urgent, self._admits)
        five = self._five
        version: dict[str, Any] = {"clean_session": not self._persistent}
        if five:
            version = {"clean_start": not self._persistent, "properties": self._properties()}
        client = aiomqtt.Client(
            host,
            settings.effective_port,
            username=settings.username or None,
            password=settings.password(),
            logger=_LOG,
            identifier=self._client_id,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", lambda **_: inbox),
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
            will=will,
            timeout=CONNECT_S,
            keepalive=settings.keepalive_s,
            tls_context=context,
            **version,
        )
        client.pending_calls_threshold = 1 << 30
        SocketHooks(client)
        client._client.manual_ack_set(self._persistent)  # noqa: SLF001 - aiomqtt has none
        hook(client, settings.keepalive_s, self._announced, self._refused)
        self.limits = BrokerLimits()
        entering = asyncio.ensure_future(client.__aenter__())
        try:
            await asyncio.shield(entering)
            if self.limits.unusable:
                raise BrokerSettingsError(self.limits.unusable)
        except BaseException as error:
            # The thread that connects cannot be stopped: what it opens is closed when it returns.
            entering.add_done_callback(lambda ended: discard(client, ended))
            if why := refused_connection(error):
                raise BrokerSettingsError(why) from None
            raise
        self._sizes.connected(self.limits.packet_bytes)
        end_is_known(client)
        return client, inbox, birth

    def _announced(self, limits: BrokerLimits) -> None:
        self.limits = limits

    def _refused(self, name: str, reason: str) -> None:
        self.rejected += 1
        if (topic := topics.parse(name, self.settings.prefix)) is not None:
            self._report(topic, f"the broker refuses it: {reason}")

    def _report(self, topic: Topic, reason: str) -> None:
        if self._reported.get(topic) != reason:
            self._reported[topic] = reason
            self._not_taken(topic, reason)

    @property
    def notes(self) -> list[str]:
        """What people should know of the present broker's limits; one sentence each."""
        return self.limits.notes(self.settings.keepalive_s, SESSION_S if self._persistent else None)

    @property
    def oversize_bytes(self) -> dict[str, int]:
        """Kind of message → size of its largest state that the broker does not take."""
        sizes: dict[str, int] = {}
        for topic, error in self.oversize.items():
            sizes[topic.kind.value] = max(sizes.get(topic.kind.value, 0), error.size)
        return sizes

    def _properties(self) -> Properties:
        properties = Properties(CONNECT_PACKET)  # type: ignore[no-untyped-call]
        properties.MaximumPacketSize = PACKET_BYTES
        if self._persistent:
            properties.SessionExpiryInterval = SESSION_S
        return properties

    @property
    def _five(self) -> bool:
        return self.settings.protocol == "5"

    async def _plain_host(self) -> str:
        """The address to connect to without TLS: none that other networks can reach."""
        host, port = self.settings.host, self.settings.effective_port
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = plain_address(host, [str(item[4][0]) for item in found])
        self._attempt += 1
        return addresses[self._attempt % len(addresses)]

    def _keeps_newest(self, name: str) -> bool:
        topic = topics.parse(name, self.settings.prefix)
        return topic is None or topic.kind.retained

    def _is_urgent(self, name: str) -> bool:
        topic = topics.parse(name, self.settings.prefix)
        return topic is not None and topic.kind in URGENT

    async def _serve(self, client: aiomqtt.Client, inbox: Inbox, birth: bytes) -> str:
        """Publish and receive until the connection ends; returns why it did."""
        self._gone = asyncio.get_running_loop().create_future()
        receiving = asyncio.create_task(self._receive(client, inbox))
        greeting = asyncio.create_task(self._greet(client, birth))
        sending: asyncio.Task[None] | None = None
        try:
            self._client = client
            await asyncio.wait({receiving, greeting}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                await receiving
            await greeting
            self.connected = True
            self.connections += 1
            self._receiver.connection_changed(connected=True, reason="")
            sending = asyncio.create_task(self._send_states(client))
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            await (receiving if receiving.done() else sending)
        finally:
            for task in (receiving, greeting, sending):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        return "connection ended"

    async def _greet(self, client: aiomqtt.Client, birth: bytes) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._status is not None:
                    await self._publish(client, self._status, birth)
            filters = [name for name, _ in self._subscriptions]
            self._sizes.check(subscribe_bytes(filters, five=self._five), time.monotonic())
        except PacketTooLargeError as error:
            raise BrokerSettingsError(f"a packet of the greeting has {error}") from None
        if not self._subscriptions:
            return
        granted = await client.subscribe(self._subscriptions, timeout=CONNECT_S)
        for (name, _), code in zip(self._subscriptions, granted, strict=True):
            if cast("Any", code).is_failure:
                raise BrokerSettingsError(
                    f"the broker refuses the subscription to {name}: {code}; see its access list"
                )

    def _end_connection(self) -> None:
        self._client, self.connected = None, False
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        in_question = self._sizes.lost(time.monotonic())
        self._late |= {cast("tuple[Topic, object]", key)[0] for key in in_question}
        self.states.connection_lost()

    async def _receive(self, client: aiomqtt.Client, inbox: Inbox) -> None:
        paho = client._client  # noqa: SLF001 - see `_connect`
        async for first in client.messages:
            # aiomqtt makes a task for each message that it hands out: the others are taken here.
            items = [first]
            while items:
                for item in items:
                    self._handle(item)
                    self.superseded += len(inbox.superseded)
                    if self._persistent:
                        done, inbox.superseded = [item, *inbox.superseded], []
                        for message in done:
                            paho.ack(message.mid, message.qos)
                    else:
                        inbox.superseded.clear()
                await asyncio.sleep(0)
                items = [inbox.get_nowait() for _ in range(min(inbox.qsize(), AT_ONCE))]

    def _handle(self, item: aiomqtt.Message) -> None:
        name, payload = item.topic.value, item.payload
        topic = topics.parse(name, self.settings.prefix)
        if topic is None:
            if payload:  # else it was taken away, which is well
                self._receiver.refused(name, "no topic of ours")
        elif not payload:
            self._receiver.cleared(topic)
        else:
            try:
                self._receiver.received(decode(payload, topic), retained=item.retain)
            except BadMessageError as error:
                self._receiver.refused(name, str(error))

    async def _send_states(self, client: aiomqtt.Client) -> None:
        under_way: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            under_way.discard(task)
            self._wake.set()

        try:
            while True:
                self._wake.clear()
                while (
                    len(under_way) < STATES_IN_FLIGHT
                    and (due := self.states.take(self._late)) is not None
                ):
                    task = asyncio.create_task(self._send_state(client, *due))
                    under_way.add(task)
                    task.add_done_callback(ended)
                await self._wake.wait()
        finally:
            for task in list(under_way):
                task.cancel()

    async def _send_state(self, client: aiomqtt.Client, topic: Topic, data: Data | None) -> None:
        try:
            payload = b"" if data is None else encode(self._factory.make(topic, data))
            await self._publish(client, topic, payload)
        except PacketTooLargeError as error:
            # The broker keeps an older state of this topic, if it has one. Others go on.
            self.oversize[topic] = error
            kind = "announced" if error.announced else "concluded"
            if self._reported.get(topic, "").partition(":")[0] != f"{kind} {error.limit}":
                self._reported[topic] = f"{kind} {error.limit}: {error}"
                self._not_taken(topic, str(error))
        except BadMessageError as error:  # Too large: nobody can have it.
            self._receiver.refused(topic.text(self.settings.prefix), str(error))
        except NotConnectedError:
            return  # All states are sent again on the next connection.
        else:
            self._late.discard(topic)
            if self.oversize.pop(topic, None) is not None:
                self._reported.pop(topic, None)
        self.states.acknowledged(topic)

    async def _publish(self, client: aiomqtt.Client, topic: Topic, payload: bytes) -> None:
        """Until PUBACK. Raises ``NotConnectedError`` when the connection ends before."""
        gone = self._gone
        assert gone is not None
        name, now = topic.text(self.settings.prefix), time.monotonic()
        size = publish_bytes(name, payload, five=self._five)
        self._sizes.check(size, now)
        key = topic, object()
        self._sizes.sent(key, size, now)
        work = asyncio.ensure_future(
            client.publish(name, payload, 1, topic.kind.retained, timeout=math.inf)
        )
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise NotConnectedError("the connection ended")
            await work
            self._sizes.answered(key)
        except aiomqtt.MqttError as error:
            raise NotConnectedError(str(error)) from None
        finally:
            work.cancel()
