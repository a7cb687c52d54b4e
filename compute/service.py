"""The event loop of a fabric-compute: messages in, decisions, what they leave stored, orders out.

One cycle: take what has come, ``decide``, store (fences, records, states of jobs) in one
transaction, and only then hand the orders to the engines. What cannot be stored is kept, and no
order leaves before it could. Without a complete view of the broker nothing is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
import time
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from compute.batch import batch_of
from compute.board import JobBoard
from compute.config import Config
from compute.core import Core
from compute.decide.effects import Effect, FenceIssued, JobState, Order, Record
from compute.engines.base import Decided, Engine
from compute.engines.exec import ExecEngine
from compute.engines.live import LiveEngine
from compute.events import EventLink
from compute.failures import failure_of
from compute.identity import EVENTS, IdentityProbe, beside
from compute.intake import UNSEEN_S, Intake
from compute.ledger import Entry, Head, sign_head
from compute.link import ComputeLink
from compute.metrics import ComputeMetrics, Figures
from compute.operators import OperatorWatch
from compute.record_budget import RecordBudget
from compute.rest import Rest
from compute.signatures import PrivateKey
from compute.store import NewRecord, Store, StoreError
from compute.views import HostViews
from telemetry.broker.interface import MessageFactory
from telemetry.http_server import HttpServer
from telemetry.messages.documents import ComputeJob, LedgerHead
from telemetry.messages.envelope import Sender
from telemetry.messages.topics import Kind, Topic
from telemetry.metrics_server import bind
from telemetry.service.systemd_notify import Notifier

FILES_S = 0.25
"""Between two looks at mode and stop file."""
BATCH_S = 0.005
"""After a first message, how long others of the same moment are awaited."""
VIEWS_AT_ONCE = 16
VIEWS_S = 0.01
"""Between two lots of views."""
VIEWS_BYTES, VIEWS_BYTES_S = 256_000, 8e6
"""In one lot, and in a second: the state of a job with 4,000 ranks has 230 KB, for 500 hosts."""
RETRY_STORE_S = 0.5
RETRY_BIND_S = 5.0
OBSERVE_S = 5.0
"""Between two looks at the documents of all jobs."""
EVENTS_AT_ONCE = 500
"""Events of hosts that one cycle moves into the ledger."""


class Service:
    """One fabric-compute.

    Attributes:
        figures: what metrics are made of.
        board: the state of all jobs.
    """

    def __init__(
        self,
        config: Config,
        core: Core,
        store: Store,
        sender: Sender,
        key: PrivateKey,
        version: str,
    ) -> None:
        """Prepare. ``sender``: this life of the process. ``key`` signs heads of the ledger."""
        self.board = JobBoard()
        self.figures = Figures(config.name, version, key_pem=key.public.pem())
        self._config, self._core, self._store, self._key = config, core, store, key
        self._log = structlog.get_logger()
        self._notifier = Notifier()
        self._news = asyncio.Event()
        self._votes = asyncio.Event()
        """What speaks against a host has come."""
        self._intake = Intake(core, older_hosts=config.jobs.accept_older_hosts)
        if config.jobs.accept_older_hosts:
            self._log.warning(
                "hosts of an older version do not say whose jobs they run: any of "
                "their users is taken for a job's own (accept_older_hosts)"
            )
        factory = MessageFactory(sender)
        self._link = ComputeLink(
            config.broker.settings,
            config.name,
            factory,
            self._intake,
            self._note_news,
        )
        broker = config.broker.settings
        self._events_link = EventLink(
            beside(broker, EVENTS) or broker, config.name, factory, self._intake, store,
            self._news.set,
        )  # fmt: skip
        self._identity = IdentityProbe(broker)
        self._live = LiveEngine(self._link)
        self.engines: list[Engine] = [self._live]
        self._exec: ExecEngine | None = None
        if config.exec is not None:
            self._exec = ExecEngine(
                config.exec.command, store, config.name,
                timeout_s=config.exec.timeout_s, attempts=config.exec.attempts,
            )  # fmt: skip
            self.engines.append(self._exec)
        self.metrics = ComputeMetrics(self.figures, self.board, self._intake)
        self._unstored: list[Effect] = []
        self._events: list[NewRecord] = []
        self._records = RecordBudget()
        self._told_states: set[str] = set()
        self._views = HostViews()
        self._untold: dict[str, None] = {}
        """Hosts whose view has changed."""
        self._telling = asyncio.Event()
        self._rest = Rest()
        self._syncs = 0
        self._swept = True
        self._synced_at = 0.0
        self._observed_at = -math.inf
        self._operators = OperatorWatch(
            config, core, self._note, lambda: self._intake.statuses.keys()
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``. Raises ``StoreError`` when the store cannot be read."""
        self._core.restore(self._store.fences(), time.monotonic())
        self.figures.ledger_entries = self._store.last.number if self._store.last else 0
        self._look_at_files()
        work: list[Coroutine[Any, Any, None]] = [
            self._link.client.run(), self._events_link.client.run(), self._cycles(),
            self._watch_files(), self._sign_heads(), self._serve_http(), self._publish_views(),
            self._identity.run(), self._link.clearing.run(),
            *(engine.run() for engine in self.engines),
        ]  # fmt: skip
        tasks = [asyncio.create_task(one) for one in work]
        stopping = asyncio.create_task(stop.wait())
        self._notifier.ready(f"mode {self.figures.mode}")
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
                raise RuntimeError("a part of the service has ended")
        finally:
            self._notifier.stopping()
            await self._link.client.goodbye()
            await self._events_link.client.goodbye()
            for task in [*tasks, stopping]:
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
            self._sign_now()

    # -- a cycle ------------------------------------------------------------------------------

    async def _cycles(self) -> None:
        while True:
            await self._wait()
            self._apply_stop()
            if self._link.complete and not self._unstored:
                began, worked = time.monotonic(), time.thread_time()
                effects = self._core.decide(began)
                self._unstored += self._records.kept(
                    effects, self.board, began, full=not self._store.reserve.held
                )
                worked = time.thread_time() - worked  # While others have the core, it is no work.
                self.figures.decisions += 1
                self.figures.decision_failures = self._core.faults
                self.figures.decision_s += time.monotonic() - began
                self.figures.cycle_wall_s = time.time()
                await self._carry_out()
                self._observe_jobs(began)
                self._after_sync()
                await self._pause(self._rest.after(worked, time.monotonic()))
            else:
                await self._carry_out()
            if not self._unstored:
                await self._record_events()
            self.figures.connected = self._link.complete
            self.figures.ids_bound = self._identity.bound
            self.figures.reserve = self._store.reserve.held
            self.figures.superseded = self._link.client.superseded
            self.figures.oversize_bytes = self._link.client.oversize_bytes
            self.figures.cleared = self._link.clearing.cleared
            self.figures.ledger_entries = self._store.last.number if self._store.last else 0
            self.figures.cycle_at = time.monotonic()
            self._notifier.watchdog()

    def _note_news(self) -> None:
        self._news.set()
        if self._core.urgent:
            self._votes.set()

    async def _pause(self, seconds: float) -> None:
        """Let others have the core, unless a host may be lost."""
        if seconds > 0.0 and not self._core.urgent:
            self._votes.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._votes.wait()

    async def _wait(self) -> None:
        """Until there is news, the core is due, or a short while has passed."""
        due, now = self._core.wake_at(), time.monotonic()
        longest = RETRY_STORE_S if due is None else min(max(due - now, 0.0), RETRY_STORE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._news.wait()
            await asyncio.sleep(BATCH_S)
        self._news.clear()

    def _observe_jobs(self, now: float) -> None:
        """What is shown of jobs in which nothing has been decided lately."""
        if now - self._observed_at >= OBSERVE_S:
            self._observed_at = now
            self.board.observe(self._intake.documents_by_job())

    async def _carry_out(self) -> None:
        """Store what is not stored yet, then let the engines act."""
        effects, events = list(self._unstored), list(self._events)
        if not effects and not events:
            return
        self.board.observe(self._intake.documents_by_job(), _jobs_of(effects))
        batch = batch_of(effects, self.board)
        commands = [
            (one.id, {"kind": one.kind, "fields": one.fields})
            for one in batch.actions
            if self._config.exec is not None and one.kind in self._config.exec.on
        ]
        try:
            entries = await asyncio.to_thread(
                self._store.commit,
                batch.fences,
                [*events, *batch.records],
                batch.states,
                commands,
                batch.gone,
            )
        except StoreError as error:
            self.figures.store_failures += 1
            self._log.error("a decision cannot be stored: no order leaves", error=str(error))
            return
        del self._unstored[: len(effects)]
        del self._events[: len(events)]
        self._stored(effects, entries)
        orders = {one.host: one.order for one in effects if isinstance(one, Order)}
        decided = Decided(orders, batch.actions)
        for engine in self.engines:
            engine.apply(decided)

    async def _record_events(self) -> None:
        """Move what hosts say of their timelines into the ledger, apart from all decisions."""
        self._store.reserve.take()  # there may be room again
        budgets = {"events_left_out": self._events_link.budget,
                   "records_left_out": self._records.hosts}  # fmt: skip
        left_out = {kind: one.take_left_out(time.monotonic()) for kind, one in budgets.items()}
        try:
            events = await asyncio.to_thread(self._store.events, EVENTS_AT_ONCE)
            events += [
                NewRecord(kind, {"host": host, "count": count})
                for kind, counts in left_out.items()
                for host, count in counts.items()
            ]
            entries = await asyncio.to_thread(self._store.commit, (), events)
        except StoreError as error:
            self.figures.store_failures += 1
            self._log.error("events of hosts cannot be recorded", error=str(error))
            for kind, one in budgets.items():
                one.put_back(left_out[kind])
            return
        self._stored([], entries)
        self.figures.events_left_out += sum(left_out["events_left_out"].values())
        self.figures.records_left_out += sum(left_out["records_left_out"].values())
        if len(events) >= EVENTS_AT_ONCE:
            self._news.set()

    def _stored(self, effects: Sequence[Effect], entries: Sequence[Entry]) -> None:
        figures = self.figures
        for one in effects:
            if isinstance(one, FenceIssued):
                figures.fences += 1
            elif isinstance(one, JobState):
                self.board.update(one.job, one.state)
                self._publish_state(one.job, one.state)
        for entry in entries:
            record = entry.record
            kind, fields = record["kind"], record["fields"]
            say = self._log.error if kind == "decision_failed" else self._log.info
            say(kind, ledger=entry.number, **_loggable(fields))
            if (failure := failure_of(kind, fields)) is not None:
                self.metrics.failure(failure)
        figures.orders = self._live.published
        if self._exec is not None:
            figures.commands = self._exec.results

    def _publish_state(self, job: str, state: ComputeJob | None) -> None:
        topic = Topic(Kind.COMPUTE_JOB, self._config.name, job)
        if state is None:
            self._told_states.discard(job)
        else:
            self._told_states.add(job)
        self._link.client.set_state(topic, None if state is None else state.model_dump(mode="json"))
        hosts = [host for host in (state.hosts if state else ()) if self._core.is_home(host, job)]
        self._tell(sorted(self._views.update(job, state, self._core.name_of(job), hosts)))

    def _tell(self, hosts: Iterable[str]) -> None:
        self._untold.update(dict.fromkeys(hosts))
        self._telling.set()

    async def _publish_views(self) -> None:
        """A few at a time, none beside votes: what people read delays no order to a host."""
        while True:
            await self._telling.wait()
            if self._core.urgent:
                await asyncio.sleep(VIEWS_S)
                continue
            size = 0
            for host in list(self._untold)[:VIEWS_AT_ONCE]:
                del self._untold[host]
                topic = Topic(Kind.COMPUTE_VIEW, self._config.name, host)
                self._link.client.set_state(topic, self._views.of(host))
                size += self._views.size_of(host)
                if size >= VIEWS_BYTES:
                    break
            if not self._untold:
                self._telling.clear()
            await asyncio.sleep(max(VIEWS_S, size / VIEWS_BYTES_S))

    def _after_sync(self) -> None:
        """The first decision after a connection: put right what the broker holds of ours."""
        now = time.monotonic()
        if self._syncs != self._link.syncs:
            self._syncs, self._synced_at, self._swept = self._link.syncs, now, False
            self._check_head()
            self._live.reconcile(withdraw=False)
            # Millions of objects that stay: looking at them again and again would delay decisions.
            gc.collect()
            gc.freeze()
        if not self._swept and now - self._synced_at > UNSEEN_S:
            self._swept = True
            for topic in self._intake.sweep(now):
                self._log.info("cleared while there was no connection", topic=topic.text())
            self._live.reconcile(withdraw=True)
            self._tell(self._link.viewed - self._views.hosts)
            for job, _ in self._store.jobs():
                if job.job not in self._told_states:
                    self._unstored.append(JobState(job.job, None))
            self._news.set()

    def _check_head(self) -> None:
        """Does the ledger still have what was published of it? Before our own head replaces it."""
        head = self._link.head
        if head is None:
            return
        entry = next(self._store.entries(head.number), None) if head.number else None
        if entry is None or entry.number != head.number or entry.hash != head.hash:
            self.figures.ledger_lost = 1
            self._log.error(
                "the ledger does not have the entry of the head that was published: the state "
                "directory is older, or was changed",
                number=head.number, here=self.figures.ledger_entries, published=head.hash,
            )  # fmt: skip
        else:
            self.figures.ledger_lost = 0

    # -- operators ----------------------------------------------------------------------------

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(FILES_S)
            self._look_at_files()

    def _look_at_files(self) -> None:
        self._operators.look(time.monotonic(), datetime.now(UTC))
        self.figures.mode = self._operators.mode
        self._apply_stop()

    def _apply_stop(self) -> None:
        """Stop file or message: no engine begins anything from here on."""
        if self._operators.apply_stop(self._intake.stop, time.monotonic()):
            self.figures.stopped = self._operators.stopped
            for engine in self.engines:
                engine.pause(self._operators.stopped)
            self._news.set()

    def _note(self, kind: str, fields: dict[str, Any]) -> None:
        """A record of what an operator did."""
        self._events.append(NewRecord(kind, fields))
        self._news.set()

    # -- ledger heads, metrics ----------------------------------------------------------------

    async def _sign_heads(self) -> None:
        while True:
            head = await asyncio.to_thread(self._sign_now)
            if head is not None and not self.figures.ledger_lost:
                self._link.publish_head(LedgerHead(**head.__dict__))
            await asyncio.sleep(self._config.ledger.head_s)

    def _sign_now(self) -> Head | None:
        """Sign the newest entry, and keep the head. None: not done."""
        last = self._store.last
        if last is None:
            return None
        head = sign_head(self._config.name, last, time.time(), self._key)
        try:
            self._store.add_head(head)
        except StoreError as error:
            self._log.error("a signed head cannot be stored", error=str(error))
            return None
        self.figures.head, self.figures.head_wall_s = head.to_json(), head.time
        self._log.info("ledger head", head=head.to_json())
        return head

    async def _serve_http(self) -> None:
        server = HttpServer(self.metrics.routes())
        try:
            if self._config.metrics.listen:
                await server.start(await self._bound(self._config.metrics.listen))
            await asyncio.Event().wait()
        finally:
            await server.stop()

    async def _bound(self, listen: str) -> socket.socket:
        """A listening socket. A port that is taken stops nothing: it is tried again."""
        said = ""
        while True:
            try:
                return bind(listen)
            except OSError as error:
                if said != str(error):
                    said = str(error)
                    self._log.error("metrics are not served", listen=listen, error=said)
            await asyncio.sleep(RETRY_BIND_S)


def _jobs_of(effects: Sequence[Effect]) -> set[str]:
    """Jobs of which something is to be recorded or shown."""
    jobs = {one.job for one in effects if isinstance(one, JobState)}
    return jobs | {str(one.fields.get("job", "")) for one in effects if isinstance(one, Record)}


def _loggable(fields: dict[str, Any]) -> dict[str, Any]:
    """Without the names that the log uses itself."""
    return {f"{name}_" if name in ("event", "level") else name: one for name, one in fields.items()}
