"""The connection of a host to the control fabric. Made only where ``[broker]`` is configured.

A host that becomes silent, and a fence that is applied, are published at once; all else that
changes is published twice a second, the newest state of each topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from fabricd.config.loader import Config
from fabricd.escalate.discovery import HOSTS, Discovery
from fabricd.escalate.evidence import ProberGaps, observations
from fabricd.escalate.fences import FenceApplier
from fabricd.escalate.host_document import host_document
from fabricd.escalate.job_watch import KINDS, JobWatch
from fabricd.escalate.jobs_here import JobsHere
from fabricd.escalate.outbox import Outbox, StoreThread
from fabricd.escalate.outbox_store import OutboxStore, Waiting
from fabricd.escalate.refusals import Refusals
from fabricd.escalate.sockets import SocketKiller, Target, addresses_of
from fabricd.probes import plan
from fabricd.runtime.host import Host
from telemetry.broker.client import BrokerClient
from telemetry.broker.guard import ReplayGuard
from telemetry.broker.interface import MessageFactory, NotConnectedError
from telemetry.broker.settings import BrokerSettings
from telemetry.events import EventKind
from telemetry.messages.documents import ComputeOrder, Fence, HostEvent, Stop, parse
from telemetry.messages.envelope import BadMessageError, Message, Sender, encode
from telemetry.messages.topics import Kind, Topic, subscription
from telemetry.snapshot import BrokerSnapshot
from telemetry.timeline import boot_id

EVENT_IMPORTANCE = {
    EventKind.PEER.value: 3,
    EventKind.FENCE.value: 3,
    EventKind.JOB.value: 2,
    EventKind.ADDRESS.value: 2,
    EventKind.LOCATED.value: 1,
}
"""Timeline rows that are sent as events; with a full outbox the least important go first."""
TIMELINE = "timeline.db"
FLUSH_S = 1.0
RECLAIM_S = 5.0
"""Between two births on a topic that somebody else writes, too."""
TICK_S = 0.25
LOOKS = 2
"""Ticks between two looks at what is not urgent."""


def broker_settings(config: Config) -> BrokerSettings:
    """The settings of ``[broker]``."""
    table = config.broker
    assert table is not None

    def path(text: str | None) -> Path | None:
        return None if text is None else Path(text)

    return BrokerSettings(
        table.host, table.port or 0, ca_file=path(table.ca_file), cert_file=path(table.cert_file),
        key_file=path(table.key_file), username=table.username or "",
        password_file=path(table.password_file), prefix=table.prefix, protocol=table.protocol,
        keepalive_s=table.keepalive_s,
    )  # fmt: skip


class Escalation:
    """One per daemon. Also the `Receiver` of its `BrokerClient`."""

    def __init__(
        self, host: Host, thread: StoreThread, appliers: tuple[FenceApplier, ...] = ()
    ) -> None:
        """Prepare; `open` binds the job socket, `run` serves.

        Args:
            host: whose timeline rows, probes and links are told.
            thread: where the outbox is stored.
            appliers: of fences, beside the sockets and the jobs themselves.
        """
        config = host.config
        assert config.broker is not None
        self.refusals = Refusals(time.monotonic)
        self.reason = "connecting"
        """Why there is no connection; "" while there is one."""
        boot = boot_id()
        self._host = host
        self._me = config.host.name
        self._factory = MessageFactory(Sender(boot, uuid.uuid4().hex))
        self._guard = ReplayGuard()
        self._gaps = ProberGaps()
        self._silent: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        """Ids of applied fences whose events are on disk: what others are told."""
        self._notes: list[str] = []
        self._reclaim_at_s = 0.0
        self._reclaiming: asyncio.Task[None] | None = None
        self._discovery = Discovery(host, self.refusals) if host.settings.discovers else None
        self._subscriptions: list[Callable[[], None]] = []
        run_dir, state_dir = Path(config.paths.run_dir), Path(config.paths.state_dir)
        self.sockets = SocketKiller(self._target)
        self.jobs = JobsHere(
            self._me, boot, (run_dir, state_dir), (self.sockets, *appliers),
            deadline_s=config.broker.fence_deadline_s, refusals=self.refusals,
            record=host.events.record, publish=self._publish_job,
            fences_changed=self._fences_changed,
        )  # fmt: skip
        self.watch = JobWatch(state_dir / TIMELINE, host.events.record)
        self._settings = broker_settings(config)
        self.client = self._make_client()
        event = Topic(Kind.HOST_EVENT, self._me)
        self.outbox = Outbox(
            OutboxStore(state_dir / "outbox.db"),
            thread,
            lambda payload: self.client.publish(event, payload),
        )
        self._connecting: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()

    def _make_client(self) -> BrokerClient:
        prefix = self._settings.prefix
        subscriptions = [
            (subscription(Kind.COMPUTE_ORDER, prefix, self._me), 1),
            (subscription(Kind.STOP, prefix), 1),
            (subscription(Kind.COMPUTE_VIEW, prefix, self._me), 1),
            (subscription(Kind.COMPUTE_STATUS, prefix), 1),
            (Topic(Kind.HOST_STATUS, self._me).text(prefix), 0),
        ]
        if self._discovery is not None:
            # QoS 0: a broker's queue for us may be shorter than the list of hosts.
            subscriptions += [
                (subscription(kind, prefix), 0) for kind in (Kind.HOST_DOCUMENT, Kind.HOST_STATUS)
            ]
        return BrokerClient(
            self._settings,
            client_id=f"fabricd-{self._me}",
            factory=self._factory,
            status=Topic(Kind.HOST_STATUS, self._me),
            subscriptions=subscriptions,
            receiver=self,
            not_taken=self._not_taken,
        )

    def snapshot(self) -> BrokerSnapshot:
        """Figures for the metrics."""
        depth = self.outbox.depth
        runs = self.jobs.registry.runs.values()
        return BrokerSnapshot(
            connected=self.client.connected,
            connections=self.client.connections,
            outbox_messages=depth.messages,
            outbox_unstored=self.outbox.unstored,
            outbox_dropped=depth.dropped,
            rejected=self.client.rejected,
            packet_limit_bytes=self._packet_limit(),
            oversize_bytes=self.client.oversize_bytes,
            refused=dict(self.refusals.counts),
            jobs=sum(run.present for run in runs),
            fences=len(self.jobs.fences.acknowledged()),
            address_conflicts=self._conflicts(),
        )

    def _conflicts(self) -> dict[tuple[str, str], int]:
        found = self._discovery.conflicts if self._discovery is not None else ()
        return {(one.host, one.other): one.addresses for one in found}

    def document(self) -> dict[str, Any]:
        """For ``status``."""
        shot, orders = self.snapshot(), self.jobs.orders
        return {
            "where": self._where(),
            "connected": shot.connected,
            "reason": self.reason,
            "connections": shot.connections,
            "outbox": shot.outbox_messages,
            "outbox_unstored": shot.outbox_unstored,
            "outbox_dropped": shot.outbox_dropped,
            "rejected": shot.rejected,
            "limits": self.client.notes,
            "not_sent": {
                topic.text(self._settings.prefix): str(error)
                for topic, error in self.client.oversize.items()
            },
            "refused": {reason: count for reason, count in shot.refused.items() if count},
            "computes": orders.computes,
            "stopped": orders.stop_reason or "no reason given" if orders.stopped else None,
            "jobs": {
                run.job: "ended" if run.gone else "connected" if run.connection else "away"
                for run in self.jobs.registry.runs.values()
            },
            "fences": {
                fence.id: f"{fence.job} on {fence.host}" for fence in self.jobs.fences.all()
            },
            "fences_applied": self._fences(),
        }

    def _packet_limit(self) -> int | None:
        concluded = [error.limit for error in self.client.oversize.values()]
        return self.client.limits.packet_bytes or min(concluded, default=None)

    # -- life -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Bind the job socket. Raises ``OSError``."""
        self.jobs.open()
        self._subscriptions = [
            self._host.evaluator.on_silence(self._silence_changed),
            self._host.events.subscribe(self._followed),
        ]
        self._look()

    async def run(self) -> None:
        """Serve until cancelled."""
        self._connecting = asyncio.create_task(self.client.run())
        tasks = [
            self._connecting,
            asyncio.create_task(self.jobs.run()),
            asyncio.create_task(self.outbox.run()),
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._watch_jobs()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def goodbye(self) -> None:
        """Say that this host leaves on purpose; then cancel `run`."""
        for unsubscribe in self._subscriptions:
            unsubscribe()
        self._subscriptions = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self.outbox.flush()
        await self.client.goodbye()

    async def _watch_jobs(self) -> None:
        await self.watch.restore()
        await asyncio.Event().wait()

    async def _tick(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(TICK_S)
            number += 1
            self.jobs.tick()
            if self._discovery is not None:
                self._discovery.tick(time.monotonic_ns())
            if number % LOOKS == 0:
                self._look()

    # -- what this host says ----------------------------------------------------------------------

    def _look(self) -> None:
        self._publish_document()
        self._publish_observations()

    def _publish_document(self) -> None:
        host, config = self._host, self._host.config
        own = plan.link_addresses(config, host.inventory.address_of)
        topology = host.detectors.localization.places.topology
        data = host_document(
            config,
            [[] if address is None else [address] for address in own],
            host.engine,
            host.publisher.modes.effective.name.lower(),
            lambda rail: topology.leaf((self._me, rail)),
        )
        self._set(Kind.HOST_DOCUMENT, data)

    def _silence_changed(self) -> None:
        self._publish_observations()
        silent = self._host.engine.silent_hosts
        for peer in sorted(silent ^ self._silent):
            gone = peer in silent
            reason = "silent on all rails" if gone else "heard again"
            self._host.events.record(EventKind.PEER, f"{peer} is {reason}", silent=gone, host=peer)
        self._silent = silent
        self.jobs.silent(silent)

    def _publish_observations(self) -> None:
        host, now = self._host, time.monotonic_ns()
        header = host.prober.feed.header()
        life, stall_ns = (header.incarnation, header.stall_ns) if header else (0, 0)
        self._gaps.update(life, stall_ns, now)
        views = host.prober.tables.views() if header else None
        data = observations(views, host.engine, self._gaps, self._fences(), now)
        self._set(Kind.HOST_OBSERVATIONS, data)

    def _fences(self) -> list[str]:
        """Fences that are applied and stored: after ``kill -9`` they hold, and are told of."""
        return [one for one in self.jobs.fences.acknowledged() if one in self._kept]

    def _fences_changed(self) -> None:
        applied = frozenset(self.jobs.fences.acknowledged())

        def stored() -> None:
            self._kept = applied
            self._publish_observations()

        self.outbox.when_stored(stored)

    def _followed(self, row: dict[str, Any]) -> None:
        """A row of the timeline: also for fabric-compute, if it concerns more than this host."""
        if (importance := EVENT_IMPORTANCE.get(str(row["kind"]))) is None:
            return
        fields = {key: row[key] for key in sorted(row.keys() - {"kind", "reason", "host"})}
        event = HostEvent(
            kind=str(row["kind"]), text=str(row.get("reason", ""))[:2000], fields=fields
        )
        message = self._factory.make(Topic(Kind.HOST_EVENT, self._me), event.model_dump())
        self.outbox.offer(Waiting(message.id, importance, encode(message)))

    def _target(self, fence: Fence) -> Target | None:
        """Whose connections a fence ends: the job's, unless they may be another job's."""
        run = self.jobs.registry.runs.get(fence.job)
        if run is None or not run.present or fence.host == self._me or not fence.is_of(run.uid):
            return None
        others = [other for other in self.jobs.registry.runs.values() if other.present]
        if len(others) > 1 and fence.host not in self._host.engine.silent_hosts:
            return None
        addresses = addresses_of(fence.host, self._host.config.peers)
        return Target(addresses, run.uid) if addresses else None

    def _publish_job(self, job: str, data: dict[str, Any] | None) -> None:
        self.client.set_state(Topic(Kind.HOST_JOB, self._me, job), data)

    def _set(self, kind: Kind, data: dict[str, Any]) -> None:
        self.client.set_state(Topic(kind, self._me), data)

    # -- what it is told (`Receiver`) -------------------------------------------------------------

    def received(self, message: Message, *, retained: bool) -> None:  # noqa: ARG002, D102
        topic = message.topic
        where = topic.text(self._settings.prefix)
        if (topic.kind, topic.owner) == (Kind.HOST_STATUS, self._me):
            self._own_status(message)
            return
        try:
            if not self._guard.is_new(message):
                return
        except BadMessageError as error:
            self.refusals.add("replayed", f"{where}: {error}")
            return
        problem = "data"
        try:
            if topic.kind is Kind.COMPUTE_ORDER and topic.name == self._me:
                order = parse(ComputeOrder, message.data)
                problem = "order"
                self.jobs.order(topic.owner, order)
            elif topic.kind is Kind.STOP:
                stop = parse(Stop, message.data)
                self.jobs.stop(stopped=stop.stopped, reason=stop.reason)
            elif topic.kind in KINDS and topic.name in ("", self._me):
                self.watch.received(message)
            elif self._discovery is not None and topic.kind in HOSTS:
                self._discovery.received(message)
            else:
                problem = "topic"
                raise BadMessageError("not for this host")
        except BadMessageError as error:
            self.refusals.add(problem, f"{where}: {error}")
        else:
            self._guard.note(message)

    def _own_status(self, message: Message) -> None:
        """A late last will of an earlier life of ours, or of another host of our name."""
        now = time.monotonic()
        if message.sender == self._factory.sender or now < self._reclaim_at_s:
            return
        self._reclaim_at_s = now + RECLAIM_S
        self._log.error(
            "another fabricd says the status of this host: an earlier one, or is its name in use?",
            boot_id=message.sender.boot_id, incarnation=message.sender.incarnation,
        )  # fmt: skip

        async def reclaim() -> None:
            with contextlib.suppress(NotConnectedError):
                await self.client.assert_online()

        self._reclaiming = asyncio.create_task(reclaim())

    def cleared(self, topic: Topic) -> None:  # noqa: D102
        self._guard.forget(topic)
        if topic.kind is Kind.COMPUTE_ORDER and topic.name == self._me:
            self.jobs.order_cleared(topic.owner)
        elif topic.kind is Kind.COMPUTE_VIEW and topic.name == self._me:
            self.watch.cleared(topic.owner)
        elif topic.kind is Kind.STOP:
            self.jobs.stop(stopped=False, reason="")
        elif self._discovery is not None and topic.kind is Kind.HOST_DOCUMENT:
            self._discovery.cleared(topic.owner)

    def refused(self, topic: str, reason: str) -> None:  # noqa: D102
        self.refusals.add("envelope", f"{topic}: {reason}")

    def _not_taken(self, topic: Topic, reason: str) -> None:
        """A state of ours that the broker does not take; it keeps the one before, if any."""
        where = topic.text(self._settings.prefix)
        self.refusals.counts["broker"] += 1
        self._log.error("not sent: the broker does not take it", topic=where, reason=reason)
        self._host.events.record(
            EventKind.BROKER, f"{where} not sent: {reason}", connected=self.client.connected,
            not_sent=where,
        )  # fmt: skip

    def connection_changed(self, *, connected: bool, reason: str) -> None:  # noqa: D102
        was = self.reason == ""
        if connected:
            self._host.events.record(
                EventKind.BROKER, f"connected to {self._where()}", connected=True
            )
            if self.client.notes != self._notes:
                self._notes = self.client.notes
                self._log.warning("limits of the broker", limits=" ".join(self._notes) or "none")
        elif was:
            self._host.events.record(
                EventKind.BROKER, f"lost {self._where()}: {reason}", connected=False
            )
        elif reason != self.reason:
            self._log.warning("no broker", broker=self._where(), reason=reason)
        self.reason = "" if connected else reason or "not connected"
        self.outbox.connection_changed(connected=connected)

    def _where(self) -> str:
        return f"{self._settings.host} port {self._settings.effective_port}"
