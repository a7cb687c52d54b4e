"""Ranks that hang, from the documents of all hosts of a job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compute.decide.ranks import rank_processes
from fabric_train.agent.hangs import Stillness, hung
from fabric_train.messages.documents import AgentDocument, JobGeneration


def hung_ranks(
    generation: JobGeneration,
    documents: Mapping[str, AgentDocument],
    offline: Collection[str] = (),
) -> dict[int, str]:
    """Ranks that hang → their process. ``offline``: hosts whose word is old."""
    told = {host: one for host, one in documents.items() if host not in offline}
    seen = {
        one.process: Stillness(one.still, frozen=one.frozen)
        for one in rank_processes(generation, told)
    }
    return {generation.ranks[one]: one for one in hung(seen, len(generation.slots))}
