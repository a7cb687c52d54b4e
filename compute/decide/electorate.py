"""Who decides over the hosts of one job, and whether a fence is confirmed. Pure.

``docs/design/lost-hosts.md`` says why no two groups that exclude each other can both do so.
"""

from __future__ import annotations

from compute.decide.choice import majority
from compute.decide.core_hosts import Electorate
from compute.decide.known_job import KnownAgent, KnownJob
from compute.decide.observers import Observers
from compute.decide.voices import members_words
from fabric_train.messages.documents import AgentDocument


def electorate(job: KnownJob, observers: Observers) -> Electorate:
    """Who decides over a job: without hosts that have left, and those whose loss is proved.

    Fenced hosts and those that restarted count until a generation without them is chosen: a fence
    that is issued without them could not be confirmed.
    """
    generation = job.core.generation
    if generation is None:
        return Electorate(frozenset(job.votes.agents), len(job.votes.agents))
    known_lost = proved(job)
    found, mute = set(), 0
    for name in job.core.electors:
        host, _, incarnation = name.partition("/")
        agent = job.agents.get(host)
        if agent is None or agent.gone or name in known_lost:
            continue
        fenced = agent.fence_id in job.fences and is_confirmed(job, host, observers)
        if agent.incarnation != incarnation or fenced:
            mute += 1
        else:
            found.add(host)
    return Electorate(frozenset(found), len(found) + mute)


def documents_of(job: KnownJob) -> dict[str, AgentDocument]:
    """What the agents say that are neither gone nor fenced, by host, as far as it counts."""
    known = {host: one for host, one in job.agents.items() if not is_out(job, one)}
    said = {host: one.document for host, one in known.items() if one.document is not None}
    return members_words(job.core.generation, said)


def is_out(job: KnownJob, agent: KnownAgent) -> bool:
    """Gone, or fenced: nothing of it counts any more."""
    return agent.gone or agent.fence_id in job.fences


def is_confirmed(job: KnownJob, host: str, observers: Observers) -> bool:
    """The fence of ``host`` is acknowledged by all hosts left with a rank, and by a majority.

    It is a majority of all who decide by the newest generation; only agents whose loss
    somebody has confirmed are not counted.
    """
    acknowledged = observers.acknowledged(job.agents[host].fence_id)
    generation = job.core.generation
    if generation is None:
        return True
    known_lost = proved(job)
    voters = [one.partition("/")[0] for one in job.core.electors if one not in known_lost]
    left = {
        name
        for name in generation.hosts
        if name in job.agents and not is_out(job, job.agents[name])
    }
    return majority(acknowledged, voters) and left <= set(acknowledged)


def unconfirmed(job: KnownJob, observers: Observers) -> frozenset[str]:
    """Hosts whose fence is not acknowledged yet by all who have to."""
    return frozenset(
        host
        for host, agent in job.agents.items()
        if agent.document is not None
        and not agent.gone
        and agent.fence_id in job.fences
        and not is_confirmed(job, host, observers)
    )


def proved(job: KnownJob) -> frozenset[str]:
    """Agents, as ``host/incarnation``, whose loss somebody has confirmed."""
    fences = (one for one in job.fences.values() if one.id in job.proved)
    return frozenset(f"{one.host}/{one.incarnation}" for one in fences)
