"""A host's connection to the broker: TLS, birth, last will, subscriptions and states of fabricd.

Bytes are `bench.attack.mqtt`'s, since 2,000 hosts have to share two cores. When it tries again is
what fabricd's own client decides by: ``FullJitter``, ``STABLE_S``, ``CONNECT_S`` and ``is_absent``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.attack import mqtt
from telemetry.broker.backoff import FullJitter
from telemetry.broker.client import CONNECT_S, PACKET_BYTES, STABLE_S
from telemetry.broker.ending import is_absent
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.broker.tls import tls_context
from telemetry.messages.envelope import Sender, encode
from telemetry.messages.topics import Kind, Topic, subscription

BIRTH, SUBSCRIPTIONS, FIRST_STATE = 1, 2, 3
"""Packet identifiers."""


class RefusedError(OSError):
    """The broker does not take the connection."""


def name_of(number: int) -> str:
    """Of a host."""
    return f"gpu-{number:04}"


def filters_of(host: str, *, discovers: bool = False) -> list[tuple[str, int]]:
    """What fabricd of ``host`` subscribes to (``fabricd.escalate.service``).

    ``discovers``: its peers are those that the broker announces.
    """
    found = [
        (subscription(Kind.COMPUTE_ORDER, name=host), 1),
        (subscription(Kind.STOP), 1),
        (subscription(Kind.COMPUTE_VIEW, name=host), 1),
        (subscription(Kind.COMPUTE_STATUS), 1),
        (Topic(Kind.HOST_STATUS, host).text(), 0),
    ]
    if discovers:
        found += [(subscription(kind), 0) for kind in (Kind.HOST_DOCUMENT, Kind.HOST_STATUS)]
    return found


class StormClient:
    """One host. ``run`` connects and comes back until it is cancelled.

    Attributes:
        connected: its subscriptions are acknowledged.
        back_at: when they were, the last time; CLOCK_MONOTONIC seconds.
        lost_at: when the last connection ended.
        connections: how many came so far.
        attempts: to connect.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        host: str,
        *,
        states: Mapping[Topic, dict[str, object]],
        filters: Sequence[tuple[str, int]],
        heard: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """``states`` are published after each connection. ``heard`` is called with messages."""
        self.connected = False
        self.back_at = self.lost_at = 0.0
        self.connections = self.attempts = 0
        self._settings, self._host, self._filters = settings, host, filters
        self._status = Topic(Kind.HOST_STATUS, host)
        self._states, self._heard = states, heard
        self._factory = MessageFactory(Sender("boot", f"{random.getrandbits(64):016x}"))
        self._context: ssl.SSLContext = tls_context(settings)
        self._transport: asyncio.WriteTransport | None = None

    def publish_birth(self) -> None:
        """Say once more that it is online. The caller knows that there is a connection."""
        self._send(self._said(self._status, BIRTH, {"online": True, "intended": False}))

    async def run(self, gate: asyncio.Semaphore) -> None:
        """Serve. ``gate``: how many may connect at a time for the first time."""
        backoff = FullJitter(random.SystemRandom().random)
        async with gate:
            connection = await self._attempt()
        while True:
            began, absent = time.monotonic(), False
            if isinstance(connection, _Connection):
                await connection.ended
                self.connected, self.lost_at = False, time.monotonic()
                if self.lost_at - began >= STABLE_S:
                    backoff.succeeded()
            else:
                absent = is_absent(connection)
            await asyncio.sleep(backoff.next_s(absent=absent))
            connection = await self._attempt()

    async def _attempt(self) -> _Connection | OSError:
        self.attempts += 1
        try:
            return await self._connect()
        except (ssl.SSLError, TimeoutError) as error:
            return OSError(str(error))
        except OSError as error:
            return error

    async def _connect(self) -> _Connection:
        """TLS, CONNECT, birth and subscriptions, each within ``CONNECT_S``. Raises ``OSError``."""
        loop, settings = asyncio.get_running_loop(), self._settings
        birth = self._said(self._status, BIRTH, {"online": True, "intended": False})
        will = encode(self._factory.make(self._status, {"online": False, "intended": False}))
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: _Connection(settings.keepalive_s, self._heard),
                settings.host, settings.effective_port, ssl=self._context,
                server_hostname=settings.host,
            )  # fmt: skip
        try:
            for packet, answer in (
                (mqtt.connect(f"fabricd-{self._host}", self._status.text(), will,
                              settings.keepalive_s, PACKET_BYTES), mqtt.CONNACK),
                (birth, mqtt.PUBACK),
                (mqtt.subscribe(self._filters, SUBSCRIPTIONS), mqtt.SUBACK),
            ):  # fmt: skip
                async with asyncio.timeout(CONNECT_S):
                    await connection.ask(packet, answer)
        except BaseException:
            connection.transport.abort()
            raise
        self._transport = connection.transport
        self.connected, self.back_at = True, time.monotonic()
        self.connections += 1
        for number, (topic, data) in enumerate(self._states.items()):
            self._send(self._said(topic, FIRST_STATE + number, data))
        return connection

    def _said(self, topic: Topic, number: int, data: dict[str, object]) -> bytes:
        return mqtt.publish(topic.text(), encode(self._factory.make(topic, data)), number)

    def _send(self, packet: bytes) -> None:
        assert self._transport is not None
        self._transport.write(packet)


class _Connection(asyncio.Protocol):
    """One connection. ``ended`` is done when it has."""

    transport: asyncio.WriteTransport

    def __init__(self, keepalive_s: int, heard: Callable[[str, bytes], None] | None) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keepalive_s, self._heard = keepalive_s, heard
        self._packets = mqtt.Packets()
        self._awaited: tuple[int, asyncio.Future[bytes]] | None = None
        self._ping: asyncio.TimerHandle | None = None

    async def ask(self, packet: bytes, answer: int) -> bytes:
        """Send a packet; the body of the next one of the type ``answer``. Raises ``OSError``."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._awaited = answer, future
        self.transport.write(packet)
        ends: set[asyncio.Future[Any]] = {future, self.ended}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise RefusedError("the connection ended")
        body = future.result()
        if answer == mqtt.CONNACK and mqtt.reason_code(body):
            raise RefusedError(f"CONNACK {mqtt.reason_code(body)}")
        return body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self._tick()

    def _tick(self) -> None:
        if not self.transport.is_closing():
            loop = asyncio.get_running_loop()
            self._ping = loop.call_later(self._keepalive_s * 0.7, self._ping_now)

    def _ping_now(self) -> None:
        self.transport.write(mqtt.pingreq())
        self._tick()

    def data_received(self, data: bytes) -> None:
        for kind, flags, body in self._packets.feed(data):
            if kind == mqtt.PUBLISH:
                self._take(flags, body)
            elif self._awaited is not None and self._awaited[0] == kind:
                self._awaited[1].set_result(body)
                self._awaited = None

    def _take(self, flags: int, body: bytes) -> None:
        if not flags >> 1 & 3 and self._heard is None:
            return
        topic, number, payload = mqtt.published(flags, body)
        if number:
            self.transport.write(mqtt.puback(number))
        if self._heard is not None:
            self._heard(topic, payload)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self._ping is not None:
            self._ping.cancel()
        with contextlib.suppress(asyncio.InvalidStateError):
            self.ended.set_result(None)
