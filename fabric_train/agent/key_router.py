"""Brings what a process asks of a generation's store to the agent that keeps it, and back.

Between hosts it goes over the connections of the agents, which have proved that they are members:
who has no token of the job cannot ask, whatever port it finds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from fabric_train.agent.key_values import Answers, Asker, KeyValues
from fabric_train.messages.keys import KeyAnswer, KeyRequest

_SLACK_S = 5.0  # for the way to another agent and back


class Agents(Protocol):
    """Other hosts' agents."""

    def send(self, host: str, message: KeyRequest | KeyAnswer) -> bool:
        """Send to the agent on ``host``. False: there is no connection."""


@dataclass
class _Asked:
    process: str
    request: KeyRequest
    number: int
    sent: bool


class KeyRouter:
    """The store that this agent keeps, and the questions of its processes to others'.

    ``answer`` sends a `KeyAnswer` to a process of this host.
    """

    def __init__(self, host: str, agents: Agents, answer: Callable[[str, KeyAnswer], None]) -> None:
        self._host = host
        self._agents = agents
        self._answer = answer
        self._values = KeyValues()
        self._numbers = 0
        self._asked: dict[int, _Asked] = {}

    def process_asks(self, process: str, request: KeyRequest) -> None:
        """A process of this host asks the store of ``request.host``."""
        if request.host == self._host:
            self._deliver(
                self._values.ask(Asker(process, is_process=True), request, time.monotonic())
            )
            self._look_again(request.timeout_s)
            return
        self._numbers += 1
        one = _Asked(process, request, self._numbers, sent=False)
        self._asked[one.number] = one
        self._send(one)
        loop = asyncio.get_running_loop()
        loop.call_later(request.timeout_s + _SLACK_S, self._give_up, one.number)

    def host_asks(self, host: str, request: KeyRequest) -> None:
        """The agent on ``host`` asks the store here."""
        self._deliver(self._values.ask(Asker(host, is_process=False), request, time.monotonic()))
        self._look_again(request.timeout_s)

    def host_answers(self, host: str, answer: KeyAnswer) -> None:
        """The agent on ``host`` has answered; answers to what it was not asked are ignored."""
        one = self._asked.get(answer.question)
        if one is not None and one.request.host == host:
            self._end(one, answer)

    def connected(self, host: str) -> None:
        """Ask again what may be lost with the connection before; a sum would count twice."""
        self._values.forget_asker(Asker(host, is_process=False))
        for one in [one for one in self._asked.values() if one.request.host == host]:
            if one.sent and one.request.call == "add":
                self._end(one, KeyAnswer(0, f"the connection to {host} was lost"))
            else:
                self._send(one)

    def left(self, process: str) -> None:
        """``process`` is gone, and what it has asked with it."""
        self._values.forget_asker(Asker(process, is_process=True))
        for number in [one.number for one in self._asked.values() if one.process == process]:
            del self._asked[number]

    def forget_before(self, generation: int) -> None:
        """Generations before that one are over."""
        self._deliver(self._values.forget_before(generation))

    def _send(self, one: _Asked) -> None:
        question = replace(one.request, question=one.number)
        one.sent = self._agents.send(one.request.host, question)

    def _deliver(self, answers: Answers) -> None:
        for who, answer in answers:
            if who.is_process:
                self._answer(who.name, answer)
            else:
                self._agents.send(who.name, answer)

    def _look_again(self, after_s: float) -> None:
        if after_s > 0:
            asyncio.get_running_loop().call_later(after_s + 0.01, self._expire)

    def _expire(self) -> None:
        self._deliver(self._values.expire(time.monotonic()))

    def _give_up(self, number: int) -> None:
        one = self._asked.get(number)
        if one is not None:
            text = f"the agent on {one.request.host} has not answered"
            self._end(one, KeyAnswer(number, text))

    def _end(self, one: _Asked, answer: KeyAnswer) -> None:
        del self._asked[one.number]
        self._answer(one.process, replace(answer, question=one.request.question))
