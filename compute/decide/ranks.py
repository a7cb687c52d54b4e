"""The processes that hold a job's ranks, as the newest documents of its agents describe them."""

from __future__ import annotations

from collections.abc import Mapping

from fabric_train.messages.documents import AgentDocument, JobGeneration, ProcessState
from fabric_train.rules.agreement import LATE

HOST_LOST = "is lost"
"""How the reason of a rank ends whose host has no agent any more."""


def rank_processes(
    generation: JobGeneration, documents: Mapping[str, AgentDocument]
) -> list[ProcessState]:
    """Processes with a rank that have not ended."""
    ranks = generation.ranks
    return [
        one
        for document in documents.values()
        for one in document.processes
        if one.process in ranks and one.state != "ended"
    ]


def holds_rank(document: AgentDocument | None, generation: JobGeneration) -> bool:
    """Whether this life of the agent holds ranks.

    What is said of a host that came back may be of the life before: nothing is to be fenced.
    """
    return document is not None and any(
        (one.host, one.incarnation) == (document.host, document.incarnation)
        for one in generation.members
        if one.host in generation.hosts
    )


def dead_ranks(generation: JobGeneration, documents: Mapping[str, AgentDocument]) -> dict[int, str]:
    """Ranks without a process → why."""
    processes = {one.process: one for doc in documents.values() for one in doc.processes}
    dead: dict[int, str] = {}
    for rank, (slot, host) in enumerate(zip(generation.slots, generation.hosts, strict=True)):
        one = processes.get(slot)
        if host not in documents or one is None:
            dead[rank] = f"{host} {HOST_LOST}"
        elif one.state == "ended":
            dead[rank] = f"{slot} {one.reason}"
    return dead


def describe_dead(dead: Mapping[int, str]) -> str:
    """The result of ``dead_ranks`` for people; ``""`` for none."""
    return "; ".join(f"rank {rank}: {why}" for rank, why in sorted(dead.items()))


def by_reason(reasons: Mapping[str, str]) -> str:
    """For people: ``h1, h2: why; h3: another``."""
    hosts: dict[str, list[str]] = {}
    for host, why in sorted(reasons.items()):
        hosts.setdefault(why, []).append(host)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in hosts.items())


def all_finished(
    generation: JobGeneration, documents: Mapping[str, AgentDocument]
) -> tuple[str, str] | None:
    """Phase and reason once the loop of every rank has ended; None before."""
    states = rank_processes(generation, documents)
    steps = {one.finished for one in states}
    if len(states) < len(generation.slots) or None in steps:
        return None
    if len(steps) > 1:
        ended = sorted(step for step in steps if step is not None)
        return "failed", f"the ranks' loops ended at different steps: {ended}"
    return "ended", f"after step {next(iter(steps))}"


def other_layouts(
    document: AgentDocument, generation: JobGeneration, layout: str | None
) -> list[str]:
    """Processes of one agent that can never hold a rank: their state has another layout."""
    return [
        one.process
        for one in document.processes
        if one.state != "ended"
        and not generation.has_rank(one.process)
        and one.layout and layout and one.layout not in (layout, LATE)
    ]  # fmt: skip
