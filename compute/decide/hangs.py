"""Ranks that hang: they work by themselves, and the others wait for them. Pure.

An agent sees that a rank of its host works without a collective, or is stopped, for long. That
alone is no fault: a rank that evaluates does so, too, and all ranks may. It is one when more than
half of the other ranks wait, as their agents see, for at least half as long. A rank in a collective
that does not end, as one whose GPU hangs, waits like all others: it is not found by this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compute.decide.ranks import rank_processes
from fabric_train.messages.documents import STANDS, WAITS, AgentDocument, JobGeneration


def hung_ranks(
    generation: JobGeneration,
    documents: Mapping[str, AgentDocument],
    offline: Collection[str] = (),
) -> dict[int, str]:
    """Ranks that hang → their process. ``offline``: hosts whose word is old."""
    told = {host: one for host, one in documents.items() if host not in offline}
    states = [one for one in rank_processes(generation, told) if one.still]
    others = len(generation.slots) - 1
    if 2 * sum(one.still == WAITS for one in states) <= others:
        return {}
    return {generation.ranks[one.process]: one.process for one in states if one.still == STANDS}
