"""Which host learns of which jobs: those in which it has a part. Pure."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Any

from telemetry.messages.documents import ComputeJob

MOST_JOBS = 256
"""In one view; as ``telemetry.messages.documents`` has it."""


class HostViews:
    """The newest state of each job, by the hosts that may know of it."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, dict[str, Any]]] = {}
        """Host → job → data of its state. All hosts of a job share one object."""
        self._sizes: dict[str, int] = {}
        """Job → bytes of its state."""

    @property
    def hosts(self) -> AbstractSet[str]:
        """Hosts with a part in any job."""
        return self._jobs.keys()

    def update(
        self, job: str, state: ComputeJob | None, name: str, hosts: Collection[str]
    ) -> set[str]:
        """Take the state of a job; None: it is no more. Returns the hosts whose view changed.

        ``name``: what its hosts call it. ``hosts``: those that may know of it.
        """
        hosts = set(hosts) if state is not None else set()
        left = {host for host, jobs in self._jobs.items() if job in jobs} - hosts
        for host in left:
            del self._jobs[host][job]
            if not self._jobs[host]:
                del self._jobs[host]
        self._sizes.pop(job, None)
        if state is not None:
            data = {**state.model_dump(mode="json"), "job": name}
            self._sizes[job] = len(state.model_dump_json())
            for host in hosts:
                self._jobs.setdefault(host, {})[job] = data
        return hosts | left

    def size_of(self, host: str) -> int:
        """About so many bytes long is its ``ComputeView``."""
        return sum(self._sizes[job] for job in self._jobs.get(host, ()))

    def of(self, host: str) -> dict[str, Any] | None:
        """The data of its ``ComputeView``: what ``host`` may know; None: nothing."""
        jobs = self._jobs.get(host)
        return None if jobs is None else {"jobs": [jobs[job] for job in sorted(jobs)][:MOST_JOBS]}
