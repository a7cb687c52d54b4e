"""The shell around ``core``: processes, the agents of other hosts, fabricd, and the local states.

It runs no collective, so nothing that blocks a rank blocks the agent. All of it is one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fabric_train.agent.exit_status import FAILED
from fabric_train.agent.outputs import Outputs
from fabric_train.agent.processes import Processes, how_ended
from fabric_train.host import local_states
from fabric_train.host import peer_messages as wire
from fabric_train.host.core import HostCore
from fabric_train.host.effects import Assign, Effect, End, Greet, Note, Setup, Start
from fabric_train.host.job_key import JobKey
from fabric_train.host.job_socket import DaemonError, Fence, JobSocket
from fabric_train.host.peer_messages import PeerMessage
from fabric_train.host.peers import Peers
from fabric_train.host.questions import Questions
from fabric_train.host.urgency import ALERT_S, LOOK_S, Urgency
from fabric_train.messages.addresses import join
from fabric_train.messages.documents import AgentDocument, JobGeneration, JobOrder
from fabric_train.messages.process import (
    Acknowledged,
    Assignment,
    Committed,
    Ending,
    Failed,
    Finished,
    LocalState,
    Message,
    MessageError,
    Protected,
    ProtectionAnswer,
    ProtectionRequest,
    Recovered,
    Release,
    Stored,
    Suspect,
    Welcome,
)
from fabric_train.rules.coordinator import Kill, RecoveryRecord, ReleaseAll, Spawn
from fabric_train.rules.limits import frozen_s, hang_s
from fabric_train.rules.protection import Placement, Protection, protection

ALONE_S = 1.0
"""Without a host that keeps its rank-local states, this host waits so long, then trains on."""
_ADVICE = (
    "A job of several hosts needs fabricd on each: name its run directory with --daemon. "
    "A job on one machine needs none: --standalone"
)


@dataclass(frozen=True)
class Options:
    """The command line of one fabric-run. ``address`` is this host's IP address in the job."""

    job: str
    nodes: int
    spares: int
    nproc: int
    standby: int
    address: str
    daemon: Path
    argv: Sequence[str]
    node_rank: int | None = None
    key: JobKey | None = None


class HostAgent:
    """Runs this host's part of one job until it ends. ``report`` gets lines for people."""

    def __init__(
        self,
        options: Options,
        directory: Path,
        report: Callable[[str], None],
        outputs: Outputs | None = None,
    ) -> None:
        self._options = options
        self._report = report
        self._incarnation = secrets.token_hex(8)
        self._token = secrets.token_hex(32)
        self._host = ""
        self._world = options.nodes * options.nproc
        self._processes = Processes(
            options.argv, self._world, directory, self, report, self._incarnation,
            of_host=options.nproc, outputs=outputs,
        )  # fmt: skip
        self._daemon = JobSocket(options.daemon, options.job, self._incarnation, self, report)
        self._core: HostCore | None = None
        self._peers: Peers | None = None
        self._local = local_states.LocalStates("")
        self._questions: Questions | None = None
        self._said: dict[str, str] = {}  # what a process has said of its state
        self.on_protected: Callable[[Protection], None] = lambda _protection: None
        self._published: AgentDocument | None = None
        self._published_at = 0.0
        self._urgency = Urgency()
        self._publishing: asyncio.Handle | None = None
        self._silent: frozenset[str] = frozenset()
        self._missed: frozenset[str] = frozenset()
        self._alerted = asyncio.Event()
        self._lonely: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._end: End | None = None
        self._leaves = False
        self.exit_status = 0
        """Of fabric-run, once `run` has returned."""

    @property
    def records(self) -> tuple[RecoveryRecord, ...]:
        """The recoveries of this host's ranks."""
        return self._core.records if self._core else ()

    def progress(self) -> tuple[int, int]:
        """Steps that ranks of this host have applied, and the generation; 0: none yet."""
        core = self._core
        if core is None or core.running is None:
            return 0, 0
        steps = [self._processes.finished_by(process).step for process in core.ranks_here]
        return max(steps, default=0), core.running.number

    async def run(self) -> str | None:
        """Run the job. Returns None when it ended well, else the reason; no process is left."""
        try:
            reader = await self._daemon.open()
        except DaemonError as error:
            self.exit_status = FAILED
            return f"{error}. {_ADVICE}"
        address = self._options.address
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, 0), family=family)
            await self._processes.open()
        except OSError as error:
            self.exit_status = FAILED
            return f"address {address}: {error.strerror or error}"
        self._prepare(listener.getsockname()[1])
        daemon = asyncio.create_task(self._daemon.run(reader))
        watching = asyncio.create_task(self._watch_progress())
        assert self._peers is not None
        try:
            await self._peers.open(listener)
            self._perform(self._running_core().start())
            await self._ended.wait()
        finally:
            ended_at = time.monotonic()
            at_once = self._end is not None and self._end.at_once
            await self._processes.close(*([0.0] if at_once else []))
            watching.cancel()
            daemon.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await daemon
            assert self._questions is not None
            self._questions.close()
            await self._daemon.close(leave=self._leaves)
            await self._peers.close()
        failure = (self._end.reason or None) if self._end else None
        if failure:
            self.exit_status = self._processes.statuses.of_failure(ended_at)
        return failure

    def stop(self, reason: str) -> None:
        """End this host's part of the job; for signals."""
        self._carry_out([End(reason)])

    def _prepare(self, port: int) -> None:
        options, here = self._options, join(self._options.address, port)
        setup = Setup(
            options.job, self._host, self._incarnation, options.nodes, options.spares,
            options.nproc, options.standby, here, here,  # the agent is the store
            self._token, options.node_rank, hang_s(os.environ), options.key, frozen_s(os.environ),
        )  # fmt: skip
        self._core = HostCore(setup)
        self._local = local_states.LocalStates(self._host)
        self._peers = Peers(
            options.job, self._host, self._incarnation, self._token, self, self._report
        )
        self._questions = Questions(
            self._host, self._core, self._local, self._peers, self._processes.send
        )

    def _running_core(self) -> HostCore:
        assert self._core is not None
        return self._core

    # Effects.

    def _perform(self, effects: Sequence[Effect]) -> None:
        try:
            self._carry_out(effects)
        except Exception as error:  # a job half changed must not go on
            self.stop(f"fabric-run failed: {type(error).__name__}: {error}")
        self._publish_soon()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn():
                    self._processes.spawn(effect.process)
                case Kill():
                    self._report(f"{effect.process} is killed: {effect.reason}")
                    self._processes.kill(effect.process)
                case Greet():
                    welcome = Welcome(self._options.job, self._world, effect.spare)
                    self._processes.send(effect.process, welcome)
                case Start():
                    self._start(effect.generation)
                case Assign():
                    self._assign(effect.process, effect.generation)
                case ReleaseAll():
                    self._leaves = True
                    for process in self._processes.connected:
                        self._processes.send(process, Release())
                case End():
                    for process in self._processes.alive if effect.at_once else ():
                        self._processes.kill(process)
                    self._end = self._end or effect
                    if self._questions is not None:
                        self._questions.end()
                    self._ended.set()
                case Note():
                    self._report(effect.text)

    def _start(self, generation: JobGeneration) -> None:
        self._update_members()
        if self._questions is not None:
            self._questions.started(generation)
        if not generation.planned:
            self._perform_local(self._local.started(generation))
        self._end_change_over()

    def _end_change_over(self) -> None:
        """Local states are those of a planned generation once this host's ranks are in it."""
        core = self._running_core()
        news = core.running
        if news is None or news is self._local.current:
            return
        if core.has_changed_over(self._local.processes, news.number):
            self._perform_local(self._local.started(news))
            self._update_members()

    def _assign(self, process: str, generation: JobGeneration) -> None:
        assignment = Assignment(
            generation.number, generation.rank_of(process), self._world, generation.store_host,
            f"g{generation.number}.{generation.proposal}", self._options.address,
            generation.base if generation.planned else 0, master=generation.store,
        )  # fmt: skip
        self._processes.assign(process, assignment)

    def _perform_local(self, effects: Sequence[local_states.Effect]) -> None:
        assert self._peers is not None
        for effect in effects:
            match effect:
                case local_states.Copy():
                    copy = wire.StoreLocal(
                        effect.generation, effect.rank, effect.step, effect.body, effect.number
                    )
                    self._peers.send(effect.host, copy)
                case local_states.ConfirmStored():
                    self._processes.send(effect.process, Stored(effect.step, effect.number))

    def _update_members(self) -> None:
        """Those of each generation that has processes here, and of the accepted one."""
        core = self._running_core()
        assert self._peers is not None
        members = {
            member.host: member
            for generation in (self._local.current, core.running, core.accepted)
            if generation is not None
            for member in generation.members
        }
        self._peers.set_members(list(members.values()))

    # Documents.

    def _publish_soon(self) -> None:
        """After this turn of the event loop, so that what changes together is one document."""
        if isinstance(self._publishing, asyncio.TimerHandle):
            self._publishing.cancel()  # that was for something less urgent
            self._publishing = None
        if self._publishing is None:
            self._publishing = asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._publishing = None
        document = self._running_core().document()
        if document == self._published or self._end is not None:
            return
        wait = self._published_at + self._urgency.patience_s(document) - time.monotonic()
        if wait > 0:
            self._publishing = asyncio.get_running_loop().call_later(wait, self._publish)
            return
        self._published, self._published_at = document, time.monotonic()
        self._urgency.sent(document)
        self._daemon.publish(document)

    # What fabricd says: see ``DaemonEvents``.

    def welcomed(self, host: str) -> None:
        """This fabric-run is the one of ``host``."""
        self._host = host

    def ordered(self, compute: str, order: JobOrder) -> None:
        """A fabric-compute wants ``order``."""
        core = self._running_core()
        accepted = core.accepted
        self._perform(core.order(compute, order, time.monotonic()))
        self._note_alert()
        self._leaves = self._leaves or order.phase == "failed"
        if core.accepted is not accepted:
            self._update_members()

    def fenced(self, fence: Fence) -> None:
        """Apply ``fence``, then acknowledge it."""
        assert self._peers is not None
        if (fence.host, fence.incarnation) == (self._host, self._incarnation):
            self.stopped(f"fence {fence.id}")  # it is applied when all processes have ended
            return
        self._report(f"incarnation {fence.incarnation} of {fence.host} is fenced")
        self._running_core().fence(fence.host, fence.incarnation)
        self._note_alert()
        self._peers.fence(fence.host, fence.incarnation)
        self._daemon.acknowledge(fence.id)

    def stopped(self, reason: str) -> None:
        """This incarnation is fenced."""
        if self._core is not None:
            self._perform(self._core.stop(reason))

    def silent(self, hosts: Sequence[str]) -> None:
        """These hosts are silent to fabricd's probes."""
        self._silent = frozenset(hosts)
        self._note_alert()

    def _note_buddies(self) -> None:
        """After a while without one, go on alone, and say so once."""
        if not self._local.hears_no_buddy:
            if self._lonely is not None:
                self._lonely.cancel()
            self._lonely = None
        elif self._lonely is None:
            self._lonely = asyncio.get_running_loop().call_later(ALONE_S, self._go_on_alone)

    def _go_on_alone(self) -> None:
        buddies = ", ".join(self._local.buddies)
        self._report(
            f"UNPROTECTED: the rank-local states of this host are on no other host, for the agents "
            f"of {buddies} are not heard. If it is lost before one is, the job cannot go on"
        )
        self._perform_local(self._local.go_on_alone())

    # Whether the job steps, while a host of it is in question.

    def _note_alert(self) -> None:
        self._urgency.alert = self._running_core().bears_witness(self._silent | self._missed)
        (self._alerted.set if self._urgency.alert else self._alerted.clear)()

    async def _watch_progress(self) -> None:
        core = self._running_core()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._alerted.wait(), LOOK_S)
            alert, now = self._urgency.alert, time.monotonic()
            for process in core.ranks_here:
                core.progressed(process, self._processes.finished_by(process), now, asked=alert)
            if alert:
                core.looked()
            self._publish_soon()
            await asyncio.sleep(ALERT_S / 2)

    # What other agents say: see ``PeerEvents``.

    def peer_connected(self, host: str) -> None:
        """A connection with the agent on ``host`` is open."""
        self._perform_local(self._local.copies_for(host))
        assert self._questions is not None
        self._questions.connected(host)

    def heard(self, hears: Sequence[str], misses: Sequence[str]) -> None:
        """Whom this agent hears and misses."""
        self._running_core().heard(hears, misses, time.monotonic())
        self._missed = frozenset(misses)
        self._note_alert()
        self._perform_local(self._local.heard(hears))
        self._note_buddies()
        self._publish_soon()

    def peer_received(self, host: str, message: PeerMessage) -> None:
        """The agent on ``host`` says ``message``."""
        assert self._peers is not None
        assert self._questions is not None
        if self._questions.peer_said(host, message):
            return
        match message:
            case wire.StoreLocal(generation, rank, step, body, number):
                if self._local.store_copy(generation, rank, step, body, number):
                    self._peers.send(host, wire.StoredLocal(generation, rank, step, number))
            case wire.StoredLocal(generation, rank, step, number):
                self._perform_local(self._local.acknowledged(host, generation, rank, step, number))
            case _:
                raise MessageError(f"{type(message).__name__} is nothing that an agent says here")

    # What processes do: see ``ProcessEvents``.

    def joined(self, process: str, software: dict[str, str]) -> None:
        """``process`` has said hello."""
        self._perform(self._running_core().joined(process, software))

    def disconnected(self, process: str) -> None:
        """No assignment can reach ``process`` any more."""
        assert self._questions is not None
        self._questions.left(process)
        if not self._leaves:
            self._processes.kill(process)

    def exited(self, process: str, code: int) -> None:
        """``process`` is gone."""
        core = self._running_core()
        self._perform(core.lost(process, how_ended(code), time.monotonic(), clean=code == 0))
        self._end_change_over()

    def received(self, process: str, message: Message) -> None:
        """``process`` says ``message``."""
        now = time.monotonic()
        core = self._running_core()
        if not core.knows(process):
            return  # it has said that it ends
        assert self._questions is not None
        if self._questions.asked(process, message):
            return
        match message:
            case Protected():
                self._said = message.report
                self._perform(core.protected(process, message.layout))
                if core.holds(process, 0):  # it says so once: who takes a rank over was a spare
                    self.on_protected(self._protection())
            case ProtectionRequest():
                self._processes.send(process, ProtectionAnswer(self._protection().encode()))
            case LocalState(rank, step, body, number):
                if self._local.holds(process, rank):
                    self._perform_local(self._local.store(process, rank, step, body, number))
                else:  # it has lost its rank, and an assignment that says so is on its way
                    self._processes.send(process, Stored(step, number))
            case Acknowledged():
                core.acknowledged(process, message.generation)
            case Suspect():
                core.suspect(process, message.generation, message.error, now)
            case Recovered():
                self._report(f"{process} {message.role}: {message.spans_ms}")
                again = message.again
                self._perform(core.recovered(process, message.generation, message.step, now, again))
                self._end_change_over()
            case Committed():
                core.committed(process, message.generation, message.step, now)
            case Failed():
                core.given_up(process, message.reason)
            case Ending():
                self._perform(core.lost(process, message.reason, now))
            case Finished():
                core.finished(process, message.step)
            case _:
                raise MessageError(f"{type(message).__name__} is nothing that a process says")
        self._publish_soon()

    def _protection(self) -> Protection:
        running = self._running_core().running
        assert running is not None
        hosts = running.hosts
        buddies = {host: local_states.buddies_of(host, running) for host in hosts}
        spare = [one.host for one in running.members if one.host not in hosts]
        placement = Placement(self._options.job, hosts, buddies, spare, self._options.standby)
        return protection(self._said, placement)
