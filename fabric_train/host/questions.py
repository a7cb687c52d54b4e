"""What processes and other agents ask of an agent, and what it asks of others to answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fabric_train.agent.key_router import KeyRouter
from fabric_train.host import peer_messages as wire
from fabric_train.host.core import HostCore
from fabric_train.host.finder import Finder
from fabric_train.host.local_states import LocalStates
from fabric_train.host.newest import NewestCheck, promise_of
from fabric_train.host.peer_messages import PeerMessage
from fabric_train.host.peers import Peers
from fabric_train.messages.documents import JobGeneration
from fabric_train.messages.keys import KeyAnswer, KeyRequest
from fabric_train.messages.process import (
    LocalStateAnswer,
    LocalStateRequest,
    Message,
    NewestAnswer,
    NewestRequest,
)


class Questions:
    """Those of one host's agent. ``send`` sends to a process of it."""

    def __init__(
        self,
        host: str,
        core: HostCore,
        local: LocalStates,
        peers: Peers,
        send: Callable[[str, Message], None],
    ) -> None:
        self._host = host
        self._core = core
        self._local = local
        self._peers = peers
        self._send = send
        self._finder = Finder(local, peers)
        self._newest = NewestCheck(host, peers)
        self._keys = KeyRouter(host, peers, send)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def end(self) -> None:
        """No process has the newest generation any more: this fabric-run ends."""
        self._closing = True

    def close(self) -> None:
        """Answer nothing more."""
        for task in list(self._tasks):
            task.cancel()

    def asked(self, process: str, message: Message) -> bool:
        """``process`` says ``message``. False: it is no question of these."""
        match message:
            case LocalStateRequest():
                self._begin(self._find(process, message.rank, message.step))
            case NewestRequest():
                self._begin(self._check_newest(process, message))
            case KeyRequest():
                self._keys.process_asks(process, message)
            case _:
                return False
        return True

    def peer_said(self, host: str, message: PeerMessage) -> bool:
        """The agent on ``host`` says ``message``. False: it is no question or answer of these."""
        match message:
            case wire.FindLocal():
                generation, body = self._local.find(message.rank, message.step) or (0, b"")
                self._peers.send(host, wire.FoundLocal(message.question, generation, body))
            case wire.FoundLocal():
                self._finder.answered(host, message)
            case wire.AskAccepted():
                mine = promise_of(self._core.accepted)
                answer = wire.NewestAccepted(message.question, mine.generation, mine.proposal)
                self._peers.send(host, answer)
            case wire.NewestAccepted():
                self._newest.answered(host, message)
            case KeyRequest():
                self._keys.host_asks(host, message)
            case KeyAnswer():
                self._keys.host_answers(host, message)
            case _:
                return False
        return True

    def connected(self, host: str) -> None:
        """A connection with the agent on ``host`` is open; what was asked before may be lost."""
        self._finder.connected(host)
        self._keys.connected(host)

    def left(self, process: str) -> None:
        """``process`` is gone, or has no connection any more."""
        self._keys.left(process)

    def started(self, generation: JobGeneration) -> None:
        """``generation`` runs; the one before may still do so, those before that do not."""
        self._keys.forget_before(generation.base)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check_newest(self, process: str, request: NewestRequest) -> None:
        rank = request.rank
        core = self._core
        number, problem = await self._newest.ask(lambda: (core.running, core.accepted))
        if not problem and not core.holds(process, rank):
            problem = f"rank {rank} is another process's in generation {number}"
        if self._closing:
            problem = "this fabric-run ends"
        self._send(process, NewestAnswer(request.question, number, problem))

    async def _find(self, process: str, rank: int, step: int) -> None:
        running = self._core.running
        others = [one.host for one in running.members] if running else []
        found = await self._finder.find(rank, step, [one for one in others if one != self._host])
        generation, body = found or (0, b"")
        if found is not None and found != self._local.find(rank, step):
            self._local.store_copy(generation, rank, step, body)
        self._send(process, LocalStateAnswer(rank, step, found is not None, body))
