"""Keeps each host to its share of the broker while no fabric-compute is there to do so.

Fabric-computes count and clear what hosts retain (`compute.quota`). While none is online nobody
would: one host could fill the broker, so that none gets in again. So `fabric-compute broker` starts
this beside mosquitto. While a fabric-compute is online it reads their statuses and nothing else.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
import uuid
from collections.abc import Sequence

import structlog

from compute.mosquitto import KEEPER, BrokerFiles, local_listener, prefix_of, values_of
from compute.quota import MOST_BYTES, Clearing, HostQuota
from telemetry.broker.client import BrokerClient
from telemetry.broker.interface import MessageFactory
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.documents import HostStatus, parse
from telemetry.messages.envelope import Message, Sender
from telemetry.messages.topics import Kind, Topic, subscription
from telemetry.service import durable

SETTLE_S = 1.0
"""Within which the broker has said, after we connected, which fabric-computes are online."""
PART = 4
"""Of the broker's memory, what one host may have at most."""
AGAIN_S = 5.0
MOST_TEXT = 1 << 20
_PR_SET_PDEATHSIG = 1


class QuotaKeeper:
    """A `Receiver`. ``online``: the fabric-computes that are."""

    def __init__(self, settings: BrokerSettings, most_bytes: int) -> None:
        """Args: ``most_bytes``: that one host may retain in documents of jobs."""
        self.online: set[str] = set()
        self._settings = settings
        self._factory = MessageFactory(Sender("broker", uuid.uuid4().hex))
        self._client: BrokerClient | None = None
        self._changed = asyncio.Event()
        self._jobs = f"{settings.prefix}/host/"
        quota = HostQuota(settings.prefix, most_bytes=min(MOST_BYTES, most_bytes))
        self.clearing = Clearing(settings.prefix, self._clear, time.monotonic, quota)

    async def _clear(self, names: Sequence[str]) -> None:
        assert self._client is not None
        await self._client.clear(names)

    async def run(self) -> None:
        """Count and clear, or watch who is online, until cancelled.

        It begins with counting: a broker that has just started is the easiest to fill.
        """
        counts = True
        while True:
            await self._watch(counts=counts)
            counts = not self.online

    async def _watch(self, *, counts: bool) -> None:
        """Until somebody else has to count, or nobody does."""
        self.online.clear()
        self.clearing.reset()
        prefix = self._settings.prefix
        filters = [(subscription(Kind.COMPUTE_STATUS, prefix), 0)]
        if counts:
            filters.append((subscription(Kind.HOST_JOB, prefix), 0))
        self._client = BrokerClient(
            self._settings, client_id=KEEPER, factory=self._factory, status=None,
            subscriptions=filters, receiver=self, admits=self._admits,
        )  # fmt: skip
        tasks = [asyncio.create_task(one) for one in (self._client.run(), self.clearing.run())]
        try:
            settled = False
            while not settled or bool(self.online) != counts:
                self._changed.clear()
                if settled or not self._client.connected:
                    await self._changed.wait()
                else:
                    await asyncio.sleep(SETTLE_S)
                settled = self._client.connected
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _admits(self, topic: str, size: int) -> bool:
        """Whether somebody reads it: documents of jobs are counted unread."""
        self.clearing.admits(topic, size)
        return not topic.startswith(self._jobs)

    # -- Receiver -----------------------------------------------------------------------------

    def received(self, message: Message, *, retained: bool) -> None:  # noqa: ARG002, D102
        if message.topic.kind is Kind.COMPUTE_STATUS:
            online = parse(HostStatus, message.data).online
            (self.online.add if online else self.online.discard)(message.topic.owner)
            self._changed.set()

    def cleared(self, topic: Topic) -> None:  # noqa: D102
        self.online.discard(topic.owner)
        self._changed.set()

    def refused(self, topic: str, reason: str) -> None:
        """Nobody's status."""

    def connection_changed(self, *, connected: bool, reason: str) -> None:  # noqa: D102
        if not connected:
            self.clearing.reset()
            self.online.clear()
            if reason:
                structlog.get_logger().warning("shares of hosts are not counted", reason=reason)
        self._changed.set()


def settings_of(files: BrokerFiles) -> tuple[BrokerSettings, int] | None:
    """Where the broker is, and how many bytes a host may have there; None: no pair for the keeper.

    Raises ``OSError``.
    """
    if not files.keeper_key.is_file():
        return None
    values = values_of(durable.require_text(files.configuration, MOST_TEXT))
    where = local_listener(values)
    prefix = prefix_of(durable.require_text(files.access, MOST_TEXT))
    if where is None or not prefix:
        return None
    settings = BrokerSettings(
        where[0], where[1], ca_file=files.directory / "ca.pem", cert_file=files.keeper_certificate,
        key_file=files.keeper_key, prefix=prefix,
    )  # fmt: skip
    memory = values.get("memory_limit", "")
    return settings, int(memory) // PART if memory.isdecimal() else MOST_BYTES


def start(files: BrokerFiles, ids: tuple[int, int] | None) -> bool:
    """Start it in a process of its own, which ends with this one. False: it has no certificate.

    Args:
        files: of the broker, which reads them as we do.
        ids: user and group that it becomes; None: the caller's.

    Raises ``OSError``.
    """
    found = settings_of(files)
    if found is None:
        return False
    parent = os.getpid()
    if os.fork():
        return True
    try:
        if ids is not None:
            os.setgroups([])
            os.setgid(ids[1])
            os.setuid(ids[0])
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:
            asyncio.run(_for_ever(*found))
    finally:
        os._exit(1)


async def _for_ever(settings: BrokerSettings, most_bytes: int) -> None:
    while True:
        try:
            await QuotaKeeper(settings, most_bytes).run()
        except Exception as error:
            structlog.get_logger().error("shares of hosts are not counted", error=repr(error))
        await asyncio.sleep(AGAIN_S)
