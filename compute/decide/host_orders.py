"""The present order to each host: its fences, and what each of its jobs wants. Pure.

A host is looked at when a job in which it has a part was decided, so one job costs nothing for the
hosts of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fabric_train.messages.documents import JobOrder
from telemetry.messages.documents import Fence


class HostOrders:
    """The newest order to each host.

    ``fences`` of ``update`` and ``changed`` are those of all jobs: for each job with a fence, its
    hosts and its fences.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, dict[str, JobOrder]] = {}
        """Host → job → its order."""
        self._hosts_of: dict[str, set[str]] = {}
        """Job → hosts that may have an order because of it."""
        self._told: dict[str, tuple[list[Fence], dict[str, JobOrder]]] = {}
        self._touched: set[str] = set()
        self._reads_users: set[str] = set()
        """Hosts that know what `Fence.uid` is; others refuse an order that has it."""

    def reads_users(self, host: str, *, yes: bool) -> bool:
        """Whether fences to a host say whose job they are of. True: its order changes by that."""
        if yes == (host in self._reads_users):
            return False
        (self._reads_users.add if yes else self._reads_users.discard)(host)
        self._touched.add(host)
        return True

    def update(self, job: str, orders: Mapping[str, JobOrder], hosts: Iterable[str]) -> None:
        """``job`` wants these ``orders``. ``hosts``: all others with a part in it, or fenced."""
        before = self._hosts_of.get(job, set())
        now = {*orders, *hosts}
        for host in before - orders.keys():
            self._drop(host, job)
        for host, order in orders.items():
            self._wanted.setdefault(host, {})[job] = order
        self._touched |= before | now
        self._hosts_of[job] = now

    def remove(self, job: str) -> None:
        """Withdraw all orders of ``job``, which has ended."""
        hosts = self._hosts_of.pop(job, set())
        for host in hosts:
            self._drop(host, job)
        self._touched |= hosts

    def _drop(self, host: str, job: str) -> None:
        wanted = self._wanted.get(host)
        if wanted is not None:
            wanted.pop(job, None)
            if not wanted:
                del self._wanted[host]

    def changed(
        self, fences: Iterable[tuple[Iterable[str], Iterable[Fence]]]
    ) -> list[tuple[str, list[Fence], dict[str, JobOrder]]]:
        """Hosts whose order is another one since the last call, by name: (host, fences, jobs)."""
        touched, self._touched = sorted(self._touched), set()
        fences_of: dict[str, list[Fence]] = {}
        for hosts, issued in fences:
            for fence in issued:
                for host in {*hosts, fence.host}:
                    fences_of.setdefault(host, []).append(fence)
        changed = []
        for host in touched:
            mine = fences_of.get(host, [])
            if host not in self._reads_users:
                mine = [fence.model_copy(update={"uid": None}) for fence in mine]
            wanted = mine, dict(sorted(self._wanted.get(host, {}).items()))
            if self._told.get(host, ([], {})) != wanted:
                self._told[host] = wanted
                changed.append((host, *wanted))
        return changed
