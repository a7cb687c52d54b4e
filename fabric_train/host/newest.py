"""Whether the generation that runs here is still the job's newest one.

A later one needs the promise of a majority of this one's electorate. So when a majority says, after
the question was asked, that it has accepted none later, there was none when the question was asked.
An agent that is fenced, or that the network cuts off, gets no such majority.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from fabric_train.host.finder import Sender
from fabric_train.host.peer_messages import AskAccepted, NewestAccepted
from fabric_train.messages.documents import JobGeneration
from fabric_train.messages.process import NEWEST_S

_AGAIN_S = 0.05


@dataclass(frozen=True)
class Promise:
    """The newest generation that an agent has accepted."""

    generation: int
    proposal: str


def promise_of(generation: JobGeneration | None) -> Promise:
    """What an agent that has accepted ``generation`` last answers."""
    return Promise(generation.number, generation.proposal) if generation else Promise(0, "")


def doubt(
    running: JobGeneration | None, accepted: JobGeneration | None, answers: dict[str, Promise]
) -> str:
    """Why ``running`` may not be the newest generation; empty: a majority says that it is.

    ``answers``: of the electorate, by host, this one's own among them. Pure.
    """
    if running is None:
        return "no generation runs here"
    if accepted is None or promise_of(accepted) != promise_of(running):
        number = accepted.number if accepted else 0
        return f"generation {number} is under way"
    later = max((one.generation for one in answers.values()), default=0)
    if later > running.number:
        return f"generation {later} is under way"
    mine = promise_of(running)
    agreeing = sum(promise == mine for promise in answers.values())
    needed = len(running.electorate) // 2 + 1
    if agreeing < needed:
        return (
            f"{agreeing} of the {len(running.electorate)} agents of generation {running.number} "
            f"answer, and {needed} are needed: this host may be cut off or replaced"
        )
    return ""


class NewestCheck:
    """Asks the job's other agents."""

    def __init__(self, host: str, peers: Sender) -> None:
        self._host = host
        self._peers = peers
        self._questions = 0
        self._answers: dict[int, dict[str, Promise]] = {}
        self._news = asyncio.Event()

    def answered(self, host: str, message: NewestAccepted) -> None:
        """The agent on ``host`` has answered; an answer to a question of the past is ignored."""
        if message.question in self._answers:
            promise = Promise(message.generation, message.proposal)
            self._answers[message.question][host] = promise
            self._news.set()

    async def ask(
        self,
        newest: Callable[[], tuple[JobGeneration | None, JobGeneration | None]],
        limit_s: float = NEWEST_S,
    ) -> tuple[int, str]:
        """Number of the newest generation, and why it may not be the newest; empty: it is.

        ``newest`` gives the running and the accepted generation of this host. Asks again while
        another generation is under way, or no majority answers, for ``limit_s`` at most.
        """
        until = time.monotonic() + limit_s
        while True:
            problem = await self._ask_once(newest, min(until, time.monotonic() + 1.0))
            running, _ = newest()
            if not problem or time.monotonic() >= until:
                return running.number if running else 0, problem
            await asyncio.sleep(_AGAIN_S)

    async def _ask_once(
        self,
        newest: Callable[[], tuple[JobGeneration | None, JobGeneration | None]],
        until: float,
    ) -> str:
        question = self._questions = self._questions + 1
        answers = self._answers[question] = {}
        asked: set[str] = set()
        try:
            while True:
                self._news.clear()
                running, accepted = newest()
                voters = {one.partition("/")[0] for one in running.electorate} if running else set()
                for host in voters - {self._host} - asked:
                    if self._peers.send(host, AskAccepted(question)):
                        asked.add(host)
                own = {self._host: promise_of(accepted)} if self._host in voters else {}
                heard = {host: one for host, one in answers.items() if host in voters}
                problem = doubt(running, accepted, heard | own)
                if not problem or time.monotonic() >= until:
                    return problem
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _AGAIN_S)
        finally:
            del self._answers[question]
