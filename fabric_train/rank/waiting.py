"""Waiting for a rank: of a process between two generations, and of a spare that has none yet."""

from __future__ import annotations

import os

from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Acknowledged, Assignment, Hello, Protected, Welcome
from fabric_train.rank.launched import software
from fabric_train.rank.torchrun import expect_rank, tell_rank
from fabric_train.rules.agreement import LATE


def introduce(link: AgentLink, process: str, token: str) -> Welcome:
    """Say who this process is. Raises ``RefusedError``, ``AgentLostError``."""
    # A job of several hosts forms when the last of them is here: that can take long.
    welcome = link.ask(Hello(process, token, os.getpid(), software()), None)
    if not isinstance(welcome, Welcome):
        raise RuntimeError(f"the agent answered {welcome}")
    return welcome


def await_assignment(link: AgentLink, generation: int) -> Assignment:
    """The newest assignment past ``generation`` that gives this process a rank.

    Raises ``SystemExit`` when the job has ended, ``AgentLostError``.
    """

    def here() -> bool:
        news = link.assignment
        return news is not None and news.generation > generation and news.rank is not None

    link.wait(lambda: here() or link.released)
    if link.released:
        raise SystemExit(0)
    assert link.assignment is not None
    return link.assignment


def await_rank(link: AgentLink, early: int | None = None) -> int:
    """Of a spare that builds its model once it knows its rank: that rank. Raises likewise.

    ``early``: it is told beforehand, and gets this one or none.
    """
    if early is not None:
        expect_rank(early)
        return early
    link.send(Protected(LATE, {}))
    assignment = await_assignment(link, 0)
    link.send(Acknowledged(assignment.generation))
    assert assignment.rank is not None
    tell_rank(assignment)
    return assignment.rank
