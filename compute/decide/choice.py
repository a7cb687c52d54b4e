"""Which generation the agents of a job have chosen: a compare-and-set without a leader.

An agent accepts each number once, never one whose base is older than what it has accepted, and
never one that gives a rank to whom it fences. A generation is chosen when a majority of its voters
and every host with a rank have accepted it, so two of one number are never both chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabric_train.messages.documents import AgentDocument, JobGeneration


def has_accepted(document: AgentDocument, generation: JobGeneration) -> bool:
    """The newest generation that this agent has accepted is ``generation``."""
    mine = document.accepted
    return (
        mine is not None
        and mine.number == generation.number
        and mine.proposal == generation.proposal
    )


def acceptors(generation: JobGeneration, documents: Mapping[str, AgentDocument]) -> int:
    """How many agents have accepted ``generation``."""
    return sum(has_accepted(one, generation) for one in documents.values())


def newest_generation(
    mine: JobGeneration | None, documents: Mapping[str, AgentDocument]
) -> JobGeneration | None:
    """Of the highest number; of several the one that most agents have accepted. ``mine`` counts."""
    known = [one.accepted for one in documents.values() if one.accepted is not None]
    known += [mine] if mine is not None else []
    number = max((one.number for one in known), default=0)
    newest = {one.proposal: one for one in known if one.number == number}
    return max(
        newest.values(), key=lambda one: (acceptors(one, documents), one.proposal), default=None
    )


def accepted_numbers(documents: Mapping[str, AgentDocument]) -> list[int]:
    """Of all agents that have accepted a generation."""
    return [one.accepted.number for one in documents.values() if one.accepted is not None]


def is_contested(generation: JobGeneration, documents: Mapping[str, AgentDocument]) -> bool:
    """Agents have accepted another generation of this number, or a later one."""
    return any(
        one.accepted is not None
        and one.accepted.number >= generation.number
        and not has_accepted(one, generation)
        for one in documents.values()
    )


def is_chosen(generation: JobGeneration, documents: Mapping[str, AgentDocument]) -> bool:
    """A majority of its voters, and each host with a rank unless it is parked, have accepted it.

    Who runs it was told so when that was the case, so it stays chosen when hosts are lost later.
    """
    if any(
        one.running == generation.number and has_accepted(one, generation)
        for one in documents.values()
    ):
        return True
    accepted = {
        f"{host}/{one.incarnation}"
        for host, one in documents.items()
        if has_accepted(one, generation)
    }
    hosts = {name.partition("/")[0] for name in accepted}
    votes = sum(voter in accepted for voter in generation.voters)
    all_are_ready = generation.parked or hosts.issuperset(generation.hosts)
    return 2 * votes > len(generation.voters) and all_are_ready


def majority(names: Sequence[str], of: Sequence[str]) -> bool:
    """More than half of ``of`` are among ``names``."""
    return 2 * len(set(names) & set(of)) > len(of)
