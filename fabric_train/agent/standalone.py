"""The shell around ``coordinator``: processes, their sockets, and the generations' store.

One agent serves the processes of one host. It runs no collective, so nothing that blocks a rank
blocks the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fabric_train.agent.hang_watch import HangWatch
from fabric_train.agent.hangs import hung
from fabric_train.agent.key_router import KeyRouter
from fabric_train.agent.outputs import Outputs
from fabric_train.agent.processes import Processes, how_ended
from fabric_train.messages.keys import KeyRequest
from fabric_train.messages.process import (
    Acknowledged,
    Assignment,
    Committed,
    Ending,
    Failed,
    Finished,
    LocalStateAnswer,
    LocalStateRequest,
    Message,
    MessageError,
    NewestAnswer,
    NewestRequest,
    Protected,
    ProtectionAnswer,
    ProtectionRequest,
    Recovered,
    Refused,
    Release,
    Suspect,
    Welcome,
)
from fabric_train.messages.state_memory import STEPS
from fabric_train.rules.coordinator import (
    Announce,
    Coordinator,
    Effect,
    JobFailed,
    Kill,
    Phase,
    RecoveryRecord,
    Refuse,
    ReleaseAll,
    Spawn,
)
from fabric_train.rules.limits import frozen_s, hang_s
from fabric_train.rules.protection import Placement, Protection, protection

_TICK_S = 0.2
_LOOK_S = 1.0  # between two looks whether a rank hangs
_HERE = "this machine"


class _Nobody:
    """There are no other agents."""

    def send(self, _host: str, _message: object) -> bool:
        return False


class Agent:
    """Runs one job on this machine until it ends. ``report`` gets lines for people."""

    def __init__(
        self,
        coordinator: Coordinator,
        job: str,
        world: int,
        argv: Sequence[str],
        directory: Path,
        report: Callable[[str], None],
        outputs: Outputs | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._job = job
        self._world = world
        self._report = report
        self._processes = Processes(
            argv, world, directory, self, report, outputs=outputs, keeps_states=True
        )
        self._keys = KeyRouter(_HERE, _Nobody(), lambda *to: self._processes.send(*to))
        self._spares: dict[str, int | None] = {}
        """Of each spare, with a rank or without: the rank for which it builds its model."""
        self._ranks: dict[str, int] = {}
        """Of each process its rank, or the one that it had last."""
        self._ending: set[str] = set()  # have left their loop: nobody waits for their end
        self._finished: set[str] = set()  # have ended their loop in this generation
        self._hangs = HangWatch(hang_s(os.environ), frozen_s(os.environ))
        self._hung: set[str] = set()  # as of the last look
        self._look_at = 0.0
        self._local_states: dict[int, dict[int, bytes]] = {}  # of processes that are lost
        self._announced: Announce | None = None
        self._said: dict[str, str] = {}  # what a process has said of its state
        self.on_protected: Callable[[Protection], None] = lambda _protection: None
        self._failure: str | None = None
        self._stopping = False
        self.exit_status = 0
        """Of fabric-run, once `run` has returned."""
        self._ended = asyncio.Event()

    @property
    def records(self) -> tuple[RecoveryRecord, ...]:
        """All recoveries, oldest first."""
        return self._coordinator.records

    def progress(self) -> tuple[int, int]:
        """Steps that are applied, and the generation; 0: none yet."""
        generation = self._coordinator.generation
        steps = [self._processes.finished_by(process).step for process in self._slots()]
        return max(steps, default=0), generation.number if generation else 0

    async def run(self) -> str | None:
        """Run the job. Returns None when it ended well, else the reason; no process is left."""
        await self._processes.open()
        ticker = asyncio.create_task(self._tick())
        try:
            self._perform(self._coordinator.start())
            await self._ended.wait()
        finally:
            ended_at = time.monotonic()
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            await self._processes.close()
        if self._failure:
            self.exit_status = self._processes.statuses.of_failure(ended_at)
        return self._failure

    def stop(self, reason: str) -> None:
        """End the job; for signals."""
        self._stopping = True
        self._failure = self._failure or reason
        self._ended.set()

    def _slots(self) -> tuple[str, ...]:
        generation = self._coordinator.generation
        return generation.slots if generation else ()

    def _perform(self, effects: Sequence[Effect]) -> None:
        try:
            self._carry_out(effects)
        except Exception as error:  # a job half changed must not go on
            self.stop(f"fabric-run failed: {type(error).__name__}: {error}")

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn():
                    self._spawn(effect)
                case Announce():
                    self._announce(effect)
                case Kill():
                    self._report(f"{effect.process} is killed: {effect.reason}")
                    self._processes.kill(effect.process)
                case Refuse():
                    self._report(f"{effect.process} is refused: {effect.reason}")
                    self._processes.send(effect.process, Refused(effect.reason))
                case ReleaseAll():
                    for process in self._processes.connected:
                        self._processes.send(process, Release())
                case JobFailed():
                    self.stop(effect.reason)

    def _spawn(self, spawn: Spawn) -> None:
        if spawn.spare:
            self._spares[spawn.process] = spawn.rank
        self._processes.spawn(spawn.process)

    def joined(self, process: str, software: dict[str, str]) -> None:
        """See ``ProcessEvents``."""
        spare = process in self._spares
        rank = self._spares.get(process)
        self._processes.send(process, Welcome(self._job, self._world, spare, rank))
        self._perform(self._coordinator.joined(process, software))

    def disconnected(self, process: str) -> None:
        """See ``ProcessEvents``. No assignment can reach the process any more."""
        self._keys.left(process)
        if self._coordinator.phase is not Phase.ENDED:
            self._processes.kill(process)

    def exited(self, process: str, code: int) -> None:
        """See ``ProcessEvents``."""
        how = how_ended(code)
        self._hangs.forget(process)
        said = self._stopping or self._processes.was_killed(process)
        if code and not said and self._coordinator.phase is not Phase.ENDED:
            self._report(f"{self._name(process)}: {how}")
        if self._coordinator.phase is Phase.ENDED:
            if code != 0 and process in self._slots():
                self._failure = self._failure or f"{process} {how} after its last step"
            if self._ending.issuperset(self._processes.alive):
                self._ended.set()
        elif not self._stopping:
            self._perform(self._coordinator.lost(process, how, time.monotonic()))
            if held := ", ".join(map(str, self._coordinator.held_for)):
                self._report(f"held: no warm spare for rank {held}; {process} {how}")
        if process not in self._slots():
            self._processes.forget_states(process)

    def _name(self, process: str) -> str:
        rank = self._ranks.get(process)
        return process if rank is None else f"rank {rank} ({process})"

    def _announce(self, announce: Announce) -> None:
        former = self._announced.generation.slots if self._announced else ()
        self._announced = announce
        self._finished.clear()
        number = announce.generation.number
        self._keys.forget_before(number - 1)
        for process in set(former) - set(announce.generation.slots):
            self._keep_states(process)
        if not announce.formed:
            self._local_states.clear()  # those of an earlier start
        elif announce.lost:
            lost = ", ".join(map(str, announce.lost))
            self._report(f"generation {number}: rank {lost} is taken over")
        else:
            self._report(f"generation {number}: all ranks connect anew")
        for process in self._processes.connected:
            self._send_assignment(process)

    def _send_assignment(self, process: str) -> None:
        announce = self._announced
        if announce is None:
            return
        generation = announce.generation
        rank = generation.rank_of(process)
        if rank is not None:
            self._ranks[process] = rank
        self._processes.assign(
            process,
            Assignment(generation.number, rank, generation.world, _HERE),
        )

    def received(self, process: str, message: Message) -> None:
        """See ``ProcessEvents``."""
        now = time.monotonic()
        core = self._coordinator
        match message:
            case Protected():
                first = not self._said and process in self._slots()
                self._perform(core.protected(process, message.layout, now))
                if first:
                    self._said = message.report
                    self.on_protected(self._protection())
            case ProtectionRequest():
                self._processes.send(process, ProtectionAnswer(self._protection().encode()))
            case LocalStateRequest():
                self._processes.send(process, self._find_state(message.rank, message.step))
            case NewestRequest():
                self._processes.send(process, self._answer_newest(process, message))
            case KeyRequest():
                self._keys.process_asks(process, message)
            case Acknowledged():
                core.acknowledged(process, message.generation)
            case Suspect():
                core.suspect(message.generation, now)
            case Recovered():
                again = message.again
                self._perform(core.recovered(process, message.generation, message.step, now, again))
                self._report(f"{process} {message.role}: {message.spans_ms}")
            case Committed():
                core.committed(process, message.generation, message.step, now)
            case Failed():
                self._perform(core.given_up(process, message.reason))
            case Ending():
                self._ending.add(process)
                self._perform(core.lost(process, message.reason, now))
            case Finished():
                self._finished.add(process)
                self._perform(core.finished(process, message.step))
            case _:
                raise MessageError(f"{type(message).__name__} is nothing that a process says")

    def _keep_states(self, process: str) -> None:
        """``process`` has lost its rank: what it has left there is all that its successor has."""
        for one in self._processes.states_of(process):
            states = self._local_states.setdefault(one.rank, {})
            states[one.step] = one.body
            for step in sorted(states)[:-STEPS]:
                del states[step]
        self._processes.forget_states(process)

    def _find_state(self, rank: int, step: int) -> LocalStateAnswer:
        body = self._local_states.get(rank, {}).get(step)
        for process in self._slots():
            for one in self._processes.states_of(process):
                if (one.rank, one.step) == (rank, step):
                    body = one.body
        return LocalStateAnswer(rank, step, body is not None, body or b"")

    def _protection(self) -> Protection:
        warm = len(set(self._spares).intersection(self._processes.alive).difference(self._slots()))
        host = socket.gethostname()
        return protection(self._said, Placement(self._job, [host] * self._world, {}, [], warm))

    def _answer_newest(self, process: str, request: NewestRequest) -> NewestAnswer:
        rank = request.rank
        generation = self._coordinator.generation
        number = generation.number if generation else 0
        if self._slots()[rank : rank + 1] == (process,) and not self._stopping:
            return NewestAnswer(request.question, number)
        return NewestAnswer(
            request.question, number, f"rank {rank} is another process's in generation {number}"
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._perform(self._coordinator.expire(now))
            if now >= self._look_at and self._coordinator.phase is Phase.RUNNING:
                self._look_at = now + _LOOK_S
                self._end_hung(now)

    def _end_hung(self, now: float) -> None:
        done = {
            process: self._processes.finished_by(process)
            for process in self._slots()
            if process not in self._finished
        }
        seen = {process: self._hangs.look(process, one, now) for process, one in done.items()}
        found = hung(seen, self._world)
        before, self._hung = self._hung, found
        for process in found & before:  # ranks that a signal lets go on do so one after the other
            why = seen[process].why
            self._report(f"{self._name(process)} is killed: {why}")
            self._hangs.ended(process, seen[process])
            self._processes.kill(process)
            self._perform(self._coordinator.lost(process, why, now))
