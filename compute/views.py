"""Which host learns of which jobs: those in which it has a part. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from telemetry.messages.documents import ComputeJob, ComputeView


class HostViews:
    """The newest state of each job, by the hosts that may know of it."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, ComputeJob]] = {}
        """Host → job → state."""

    @property
    def hosts(self) -> AbstractSet[str]:
        """Hosts with a part in any job."""
        return self._jobs.keys()

    def update(self, job: str, state: ComputeJob | None) -> set[str]:
        """Take the state of a job; None: it is no more. Returns the hosts whose view changed."""
        hosts = set(state.hosts) if state is not None else set()
        left = {host for host, jobs in self._jobs.items() if job in jobs} - hosts
        for host in left:
            del self._jobs[host][job]
            if not self._jobs[host]:
                del self._jobs[host]
        if state is not None:
            for host in hosts:
                self._jobs.setdefault(host, {})[job] = state
        return hosts | left

    def of(self, host: str) -> ComputeView | None:
        """What ``host`` may know; None: nothing."""
        jobs = self._jobs.get(host)
        return None if jobs is None else ComputeView(jobs=[jobs[job] for job in sorted(jobs)])
