"""Whole hosts: frozen, or without power."""

from __future__ import annotations

import signal
import time

from lab.faults.base import Fault, PortsDown
from lab.faults.holds import HoldTable
from lab.lifecycle import procs
from lab.lifecycle.registry import LabError
from lab.network import build
from lab.topology import (
    HostTarget,
    Port,
    Target,
)

FREEZE_S = 20.0


class NodeFreeze(Fault):
    """SIGSTOP to every process of a host; its kernel goes on answering ARP and TCP."""

    kind = "freeze"
    targets = (HostTarget,)

    def _prepare(self, target: Target) -> None:
        assert isinstance(target, HostTarget)
        self._host = target.host
        self._ns = self.site.topology.ns("host", target.host)
        self._table = HoldTable(self.site.dir.holds)

    def _start(self) -> None:
        with self._table.locked():
            self._table.take(self.site.freeze_row(self._host), self.holder)
        # A process may fork before it is scheduled to stop. The child may have a lower pid, one
        # that the search had passed: everybody is stopped when two searches find nobody running.
        deadline = time.monotonic() + FREEZE_S
        searches = 0
        while searches < 2:
            left = [p for p in procs.inhabitants([self._ns]) if not p.stopped]
            searches = 0 if left else searches + 1
            for who in left:
                who.signal(signal.SIGSTOP)
            if left and time.monotonic() > deadline:
                raise LabError(f"{self.target_text}: pid {left[0].pid} does not stop")
            time.sleep(0.001)

    def _end(self) -> None:
        with self._table.locked():
            if self._table.release(self.site.freeze_row(self._host), self.holder):
                for who in procs.inhabitants([self._ns]):
                    who.signal(signal.SIGCONT)

    def close(self) -> None:
        """Close the table."""
        self._table.close()


class NodeKill(PortsDown):
    """Power loss: all links down, then every process SIGKILLed, so that no FIN gets out.

    While it lasts nothing is restarted; at its end the links come back and the lab's supervisor
    starts the services that were running.
    """

    kind = "kill"
    targets = (HostTarget,)

    def _ports(self, target: Target) -> list[Port]:
        assert isinstance(target, HostTarget)
        self._host = target.host
        topology = self.site.topology
        rails = [topology.host_port(target.host, r) for r in range(topology.rails)]
        return [*rails, *([topology.management_port(target.host)] if topology.management else [])]

    def _start(self) -> None:
        with self._table.locked():
            self._table.take(self.site.kill_row(self._host), self.holder)
        super()._start()
        ns = self.site.topology.ns("host", self._host)
        while inhabitants := procs.inhabitants([ns]):
            for who in inhabitants:
                who.signal(signal.SIGKILL)
            time.sleep(0.002)

    def _after_up(self) -> None:
        build.restore_routes(self.site.topology, "host", self._host)
        with self._table.locked():
            self._table.release(self.site.kill_row(self._host), self.holder)
