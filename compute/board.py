"""What is known of each job: for metrics, for ``fabric-compute jobs`` and for the ledger. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fabric_train.messages.documents import AgentDocument
from telemetry.messages.documents import ComputeJob


@dataclass
class JobView:
    """One job. ``protected`` is as it was while the job last ran with all of its ranks."""

    state: ComputeJob
    spares: int = 0
    protected: bool = False

    @property
    def world(self) -> int:
        """Its ranks."""
        return len(self.state.ranks)


class JobBoard:
    """The newest state of each job."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobView] = {}

    def update(self, job: str, state: ComputeJob | None) -> None:
        """The core says this of a job; None: it is no more."""
        if state is None:
            self.jobs.pop(job, None)
        elif job in self.jobs:
            self.jobs[job].state = state
        else:
            self.jobs[job] = JobView(state)

    def observe(
        self,
        documents: Mapping[tuple[str, str], AgentDocument],
        jobs: Collection[str] | None = None,
    ) -> None:
        """Count spares and see who is protected, of ``jobs`` or of all.

        ``documents``: (host, job as ``jobs`` has it) → its agent's.
        """
        wanted = self.jobs.keys() if jobs is None else self.jobs.keys() & set(jobs)
        agents: dict[str, list[AgentDocument]] = {}
        for (_, job), document in documents.items():
            if job in wanted:
                agents.setdefault(job, []).append(document)
        for job in wanted:
            _observe(self.jobs[job], agents.get(job, []))

    def hosts_of(self, job: str) -> Sequence[str]:
        """Hosts with a part in a job; none when it is not known."""
        return self.jobs[job].state.hosts if job in self.jobs else ()

    def world_of(self, job: str) -> int:
        """Ranks of a job, 0 when it is not known."""
        return self.jobs[job].world if job in self.jobs else 0

    def is_protected(self, job: str) -> bool:
        """Whether the job was protected while it last ran with all of its ranks."""
        return job in self.jobs and self.jobs[job].protected


def _observe(view: JobView, agents: list[AgentDocument]) -> None:
    holders = {place.rpartition(" ")[2] for place in view.state.ranks.values()}
    processes = {one.process: one for document in agents for one in document.processes}
    warm = [one for one in processes.values() if one.state == "warm"]
    view.spares = sum(one.process not in holders for one in warm)
    whole = bool(holders) and all(
        name in processes and processes[name].state != "ended" for name in holders
    )
    if view.state.phase == "running" and whole:
        protected = all(processes[name].state == "warm" for name in holders)
        view.protected = protected and view.spares > 0 and len(holders) > 1
