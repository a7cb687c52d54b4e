"""Who may be part of a job: no more hosts than it asked for, the first that came first. Pure.

One voice decides for no job: who is one too many is not taken, and the job goes on. And nobody
learns of its hosts, their addresses and tokens who is not needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fabric_train.messages.documents import AgentDocument, JobGeneration

TOO_MANY = "the job has all of its hosts and spares"


class Arrivals:
    """The agents (``host/incarnation``) of one job, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._order: dict[str, None] = {}

    def note(self, documents: Mapping[str, AgentDocument]) -> None:
        """These are here. Who is gone, and comes again, comes last."""
        here = {_agent(host, one): None for host, one in documents.items()}
        self._order = {one: None for one in self._order if one in here} | here

    def surplus(self, documents: Mapping[str, AgentDocument], wanted: int) -> list[str]:
        """Hosts beyond the first ``wanted``."""
        return self._sorted(documents)[wanted:]

    def not_needed(
        self,
        generation: JobGeneration,
        documents: Mapping[str, AgentDocument],
        leaving: Collection[str] = (),
    ) -> list[str]:
        """Hosts that came later, and for which there is no place yet.

        ``leaving``: hosts whose places become free, for they are drained.
        """
        members = set(generation.electorate)
        late = {host: one for host, one in documents.items() if _agent(host, one) not in members}
        if not late:
            return []
        first = next(iter(documents.values()))
        taken = sum(host not in late and host not in leaving for host in documents)
        return self.surplus(late, max(first.nodes + first.spares - taken, 0))

    def _sorted(self, documents: Mapping[str, AgentDocument]) -> list[str]:
        places: Sequence[str] = list(self._order)
        known = {name: place for place, name in enumerate(places)}
        return sorted(
            documents, key=lambda host: known.get(_agent(host, documents[host]), len(known))
        )


def _agent(host: str, document: AgentDocument) -> str:
    return f"{host}/{document.incarnation}"
