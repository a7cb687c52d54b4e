"""Orders that start no generation."""

from __future__ import annotations

from collections.abc import Mapping

from fabric_train.messages.documents import AgentDocument, JobGeneration, JobOrder


def refusals(
    documents: Mapping[str, AgentDocument], wrong: Mapping[str, str]
) -> dict[str, JobOrder]:
    """Hosts of ``wrong`` are not taken: why, by host."""
    return {
        host: JobOrder(documents[host].incarnation, "failed", why) for host, why in wrong.items()
    }


def waiting(
    documents: Mapping[str, AgentDocument], reason: str, ended: JobGeneration | None = None
) -> dict[str, JobOrder]:
    """All hosts wait. ``ended``: with new processes, for this start has failed."""
    return {
        host: JobOrder(one.incarnation, "waiting", reason, ended) for host, one in documents.items()
    }
