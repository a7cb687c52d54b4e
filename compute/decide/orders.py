"""Orders that start no generation."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fabric_train.messages.documents import AgentDocument, JobGeneration, JobOrder


def refusals(
    documents: Mapping[str, AgentDocument], wrong: Mapping[str, str]
) -> dict[str, JobOrder]:
    """Hosts of ``wrong`` are not taken: why, by host."""
    return {
        host: JobOrder(documents[host].incarnation, "failed", why) for host, why in wrong.items()
    }


def ending(
    documents: Mapping[str, AgentDocument], incarnations: Collection[str], phase: str, reason: str
) -> dict[str, JobOrder]:
    """The run of a job that had these ``incarnations`` is over; who comes later waits."""
    late = "the last run of this job has not ended on all hosts"
    return {
        host: JobOrder(one.incarnation, phase, reason)
        if one.incarnation in incarnations
        else JobOrder(one.incarnation, "waiting", late)
        for host, one in documents.items()
    }


def waiting(
    documents: Mapping[str, AgentDocument], reason: str, ended: JobGeneration | None = None
) -> dict[str, JobOrder]:
    """All hosts wait. ``ended``: with new processes, for this start has failed."""
    return {
        host: JobOrder(one.incarnation, "waiting", reason, ended) for host, one in documents.items()
    }
