"""Who decides over a job that waits for a spare. Pure.

A job that is held has hosts that can vote no more. A *parked* generation lets those that are left
decide without them, so that the next loss finds a majority, too. ``docs/design/lost-hosts.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from compute.decide.placement import members_of
from fabric_train.messages.documents import AgentDocument, JobGeneration


def electors_of(generation: JobGeneration, *, chosen: bool) -> Sequence[str]:
    """Agents (``host/incarnation``) whose majority decides while ``generation`` is the newest.

    ``chosen``: a majority has accepted it. Before that a parked one has changed nothing.
    """
    return generation.voters if generation.parked and not chosen else generation.electorate


def can_shrink(electors: Sequence[str], documents: Mapping[str, AgentDocument]) -> bool:
    """Some of ``electors`` are not in ``documents``, and a majority is."""
    left = {f"{host}/{one.incarnation}" for host, one in documents.items()}.intersection(electors)
    return len(electors) // 2 < len(left) < len(electors)


def parked_generation(
    previous: JobGeneration,
    number: int,
    documents: Mapping[str, AgentDocument],
    electors: Sequence[str],
    reason: str,
    proved: Collection[str] = (),
) -> JobGeneration:
    """The ranks of ``previous`` as they are, decided over by the hosts of ``documents`` alone.

    ``electors``: agents whose majority decides now. ``proved``: those of them that need no vote,
    for they are known to be off.
    """
    members = members_of(documents)
    return replace(
        previous,
        number=number,
        base=previous.number,
        electorate=sorted(f"{one.host}/{one.incarnation}" for one in members),
        voters=[one for one in electors if one not in proved],
        members=members,
        formed=True,
        reason=reason,
        planned=False,
        parked=True,
    )
