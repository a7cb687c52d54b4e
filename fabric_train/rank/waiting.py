"""Waiting for a rank: of a process between two generations, and of a spare that has none yet."""

from __future__ import annotations

from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Acknowledged, Assignment, Protected
from fabric_train.rules.agreement import LATE


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


def await_rank(link: AgentLink) -> int:
    """Of a spare that builds its model once it knows its rank: that rank. Raises likewise."""
    link.send(Protected(LATE, {}))
    assignment = await_assignment(link, 0)
    link.send(Acknowledged(assignment.generation))
    assert assignment.rank is not None
    return assignment.rank
