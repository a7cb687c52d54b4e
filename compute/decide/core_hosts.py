"""The hosts that hear each other and are a majority: at most one such group of a job. Pure.

``docs/design/lost-hosts.md`` has the rule and its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from compute.decide.agent_votes import AgentsSay
from compute.decide.observers import Observers


@dataclass(frozen=True)
class Electorate:
    """``hosts`` can vote; more than half of ``size`` decide. Others of it count, mute."""

    hosts: frozenset[str]
    size: int

    def is_majority(self, hosts: Collection[str]) -> bool:
        """Those of ``hosts`` that can vote are more than half of all."""
        return 2 * len(self.hosts.intersection(hosts)) > self.size


def core_hosts(electorate: Electorate, neighbours: Callable[[str], Set[str]]) -> frozenset[str]:
    """All hosts that are connected with a majority of ``electorate``; empty: there are none.

    ``neighbours``: host → the hosts with which it has an open pair.
    """
    left = set(electorate.hosts)
    while electorate.is_majority(left):
        group = _connected(left.pop(), neighbours)
        if electorate.is_majority(group):
            return frozenset(group)
        left -= group
    return frozenset()


def largest_group(electorate: Collection[str], neighbours: Callable[[str], Set[str]]) -> list[str]:
    """Of the electorate the most that are connected, sorted: for people, where there is no core."""
    left, found = set(electorate), list[str]()
    for host in sorted(electorate):
        if host in left:
            group = _connected(host, neighbours).intersection(electorate)
            left -= group
            found = max(found, sorted(group), key=len)
    return found


def _connected(start: str, neighbours: Callable[[str], Set[str]]) -> set[str]:
    group, edge = {start}, {start}
    while edge:
        edge = set().union(*map(neighbours, edge)) - group
        group |= edge
    return group


def by_probes(
    observers: Observers, agents: AgentsSay, electorate: Collection[str]
) -> Callable[[str], Set[str]]:
    """Neighbours on the rails. Hosts that nobody probes are those of their agents' heartbeats."""
    beside = [host for host in electorate if not observers.is_probed(host)]
    if not beside:
        return observers.open_peers
    heartbeats = by_heartbeats(observers, agents, electorate)
    unprobed = set(beside)

    def neighbours(host: str) -> Set[str]:
        if host in unprobed:
            return heartbeats(host)
        return observers.open_peers(host) | (heartbeats(host) & unprobed)

    return neighbours


def by_heartbeats(
    observers: Observers, agents: AgentsSay, electorate: Collection[str]
) -> Callable[[str], Set[str]]:
    """Neighbours on the network of the agents: those of the job, unless one misses the other.

    What an agent says whose host has lost the broker is old: two of these are no pair.
    """
    members = set(electorate) & agents.agents
    old = members & observers.last_wills
    fresh = members - old
    cut: dict[str, set[str]] = {}
    for host in agents.missed & members:
        for agent in agents.missed_by(host):
            if agent in fresh:
                cut.setdefault(host, set()).add(agent)
                cut.setdefault(agent, set()).add(host)

    def neighbours(host: str) -> Set[str]:
        if host not in members:
            return set()
        return (fresh if host in old else members) - cut.get(host, set()) - {host}

    return neighbours
