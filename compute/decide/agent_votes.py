"""Heartbeat votes of one job's agents, indexed by the host that they are about. Pure.

A lost host changes the document of each agent of its job. The index is updated by one document
without reading the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol


class AgentsSay(Protocol):
    """What the agents of a job say of each other's heartbeats."""

    @property
    def agents(self) -> Set[str]:
        """Hosts whose agent counts."""

    @property
    def missed(self) -> Set[str]:
        """Hosts that an agent misses."""

    def missed_by(self, host: str) -> Collection[str]:
        """Agents that miss the agent of ``host``."""

    def heard_by(self, host: str) -> Collection[str]:
        """Agents that hear the agent of ``host``."""


@dataclass(frozen=True)
class _Said:
    hears: Sequence[str]
    misses: Sequence[str]


class AgentVotes:
    """The newest vote of each agent.

    ``heard_by`` is indexed only for hosts that were asked about, until ``keep`` drops them: an
    index of all hosts would have the square of a job's hosts as its size.
    """

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}
        self._missed: dict[str, set[str]] = {}
        self._heard: dict[str, set[str]] = {}

    @classmethod
    def of(cls, agents: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> AgentVotes:
        """Host → the hosts that the agent on it hears, and those that it misses."""
        votes = cls()
        for agent, (hears, misses) in agents.items():
            votes.update(agent, hears, misses)
        return votes

    def update(self, agent: str, hears: Sequence[str], misses: Sequence[str]) -> None:
        """Replace the vote of the agent on host ``agent``: the hosts it hears and misses."""
        before = self._said.get(agent, _Said((), ()))
        self._said[agent] = _Said(hears, misses)
        self._note_missed(agent, before.misses, misses)
        if self._heard:
            now = set(hears)
            for host, names in self._heard.items():
                if host in now:
                    names.add(agent)
                else:
                    names.discard(agent)

    def remove(self, agent: str) -> None:
        """Drop the vote of the agent on host ``agent``."""
        before = self._said.pop(agent, None)
        if before is None:
            return
        self._note_missed(agent, before.misses, ())
        for names in self._heard.values():
            names.discard(agent)

    def _note_missed(self, agent: str, before: Sequence[str], now: Sequence[str]) -> None:
        if before == now:
            return
        for host in set(before).difference(now):
            self._missed[host].discard(agent)
            if not self._missed[host]:
                del self._missed[host]
        for host in set(now).difference(before):
            self._missed.setdefault(host, set()).add(agent)

    @property
    def agents(self) -> Set[str]:
        """Hosts whose agent counts."""
        return self._said.keys()

    @property
    def missed(self) -> Set[str]:
        """Hosts that an agent misses."""
        return self._missed.keys()

    def missed_by(self, host: str) -> Collection[str]:
        """Agents that miss the agent of ``host``."""
        return self._missed.get(host, ())

    def heard_by(self, host: str) -> Collection[str]:
        """Agents that hear the agent of ``host``."""
        known = self._heard.get(host)
        if known is None:
            known = {agent for agent, said in self._said.items() if host in said.hears}
            self._heard[host] = known
        return known

    def keep(self, hosts: Collection[str]) -> None:
        """Drop the index of ``heard_by`` for all hosts but ``hosts``."""
        for host in self._heard.keys() - set(hosts):
            del self._heard[host]
