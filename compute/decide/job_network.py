"""What a job's hosts are judged by: its network, as its agents say it, and who may vote. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compute.decide.electorate import electorate, unconfirmed
from compute.decide.evidence import AGENTS, RAILS, UNKNOWN, Bench
from compute.decide.known_job import KnownJob
from compute.decide.observers import Observers
from fabric_train.messages.addresses import AddressError, split
from fabric_train.messages.documents import NETWORK, AgentDocument, JobGeneration


def network_of(documents: Collection[AgentDocument], generation: JobGeneration | None) -> str:
    """RAILS, AGENTS, or UNKNOWN where no process with a rank says it.

    Processes of one job agree in it, as in all of their software.
    """
    for document in documents:
        for one in document.processes:
            if generation is not None and not generation.has_rank(one.process):
                continue
            if (said := one.software.get(NETWORK)) in (RAILS, AGENTS):
                return said
    return UNKNOWN


def is_on_rails(
    documents: Collection[AgentDocument], addresses: Mapping[str, Collection[str]]
) -> bool:
    """Whether the agents talk over addresses of links: then heartbeats travel over the rails.

    ``addresses``: host → those of its links. The first host that is known there says it for all.
    """
    for document in documents:
        if (known := addresses.get(document.host)) is not None:
            try:
                return split(document.address)[0] in known
            except AddressError:
                continue
    return False


def bench_of(
    job: KnownJob,
    observers: Observers,
    maintenance: Collection[str],
    addresses: Mapping[str, Collection[str]],
    linkless: Collection[str],
) -> Bench:
    """All that the verdicts over the hosts of ``job`` are made of.

    ``maintenance``: hosts over which nothing is decided. ``addresses``: host → those of its links.
    ``linkless``: hosts whose links are all down, as they say themselves.
    """
    generation = job.core.generation
    documents = [one.document for one in job.agents.values() if one.document is not None]
    return Bench(
        hosts=job.votes.agents - set(maintenance),
        electorate=electorate(job, observers),
        ranks=set(generation.hosts) if generation else set(),
        network=network_of(documents, generation),
        observers=observers,
        agents=job.votes,
        one_network=is_on_rails(documents, addresses),
        pending=job.core.waits_for_acceptance or bool(unconfirmed(job, observers)),
        linkless=linkless,
    )
