"""Finds a rank-local state that is not, or not in its newest form, on this host."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Protocol

from fabric_train.host.local_states import LocalStates
from fabric_train.host.peer_messages import FindLocal, FoundLocal, PeerMessage

LIMIT_S = 30.0  # for members that cannot be asked; a process waits for 60 s
_AGAIN_S = 0.05


class Sender(Protocol):
    """``Peers``, as far as it is needed here."""

    @property
    def hears(self) -> list[str]:
        """Hosts that this agent hears."""

    def send(self, host: str, message: PeerMessage) -> bool:
        """Send to the agent on ``host``. False: there is no connection."""


class Finder:
    """Asks the job's other agents."""

    def __init__(self, states: LocalStates, peers: Sender) -> None:
        self._states = states
        self._peers = peers
        self._questions = 0
        self._answers: dict[int, dict[str, tuple[int, bytes]]] = {}
        self._asked: dict[int, set[str]] = {}
        self._news = asyncio.Event()

    def connected(self, host: str) -> None:
        """What was asked of ``host`` before may be lost."""
        for asked in self._asked.values():
            asked.discard(host)
        self._news.set()

    def answered(self, host: str, message: FoundLocal) -> None:
        """The agent on ``host`` has answered; an answer to a question of the past is ignored."""
        if message.question in self._answers:
            self._answers[message.question][host] = (message.generation, message.body)
            self._news.set()

    async def find(self, rank: int, step: int, hosts: Sequence[str]) -> tuple[int, bytes] | None:
        """Generation and state of ``rank`` at the start of ``step``; None: nobody has it.

        The newest of what this host and ``hosts`` have. Those that are not heard are waited for
        only while nobody else has it, and for ``LIMIT_S`` at most.
        """
        question = self._questions = self._questions + 1
        answers = self._answers[question] = {}
        asked = self._asked[question] = set()
        until = time.monotonic() + LIMIT_S
        try:
            while True:
                for host in hosts:
                    if host not in asked and self._peers.send(
                        host, FindLocal(question, rank, step)
                    ):
                        asked.add(host)
                found = [one for one in answers.values() if one[0]]
                if (own := self._states.find(rank, step)) is not None:
                    found.append(own)
                silent = [host for host in hosts if host not in answers]
                heard = set(self._peers.hears) & set(silent)
                if not silent or (found and not heard) or time.monotonic() > until:
                    return max(found, key=lambda one: one[0]) if found else None
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _AGAIN_S)
        finally:
            del self._answers[question], self._asked[question]
