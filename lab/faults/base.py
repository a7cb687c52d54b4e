"""What a fault is: armed, started, ended, recorded; and those that hold ports down.

A fault only needs the lab's directory and its topology, so any process may inject one: tests, the
demo, the command line.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

from lab.faults.holds import Holder, HoldTable
from lab.faults.truth import Truth, now_ns
from lab.lifecycle import procs
from lab.lifecycle.registry import LabDir
from lab.network.rtlink import LinkSetter
from lab.topology import (
    HostTarget,
    Port,
    RailTarget,
    SwitchTarget,
    Target,
    Topology,
    TopologyError,
)

Direction = Literal["tx", "rx", "both"]
"""As the host sees it: ``tx`` is what it sends, ``rx`` what it should receive."""

_serials = itertools.count(1)


def next_holder() -> Holder:
    """A name for one fault of this process, unique on this machine while the process lives."""
    me = procs.myself()
    return Holder(me.pid, me.start & 0xFFFFFFFF, next(_serials))


@dataclass(frozen=True, slots=True)
class Site:
    """The lab that a fault is injected into."""

    topology: Topology
    dir: LabDir

    @property
    def truth(self) -> Truth:
        """Where faults are recorded."""
        return Truth(self.dir.truth)

    def freeze_row(self, host: int) -> int:
        """Row of the hold table that counts freezes of a host."""
        return self.topology.port_count + host

    def kill_row(self, host: int) -> int:
        """Row of the hold table that counts node kills of a host."""
        return self.topology.port_count + self.topology.hosts + host

    def address_row(self, host: int, rail: int) -> int:
        """Row of the hold table that counts who keeps a rail without addresses."""
        topology = self.topology
        return topology.port_count + 2 * topology.hosts + host * topology.rails + rail


class Fault(ABC):
    """One fault: ``arm`` (all that is slow), ``start``, ``end``, ``close``, each once."""

    kind: ClassVar[str]
    targets: ClassVar[tuple[type, ...]]
    """Kinds of target that make sense."""

    def __init__(self, target: str) -> None:
        self.target_text = target
        self.holder = next_holder()
        self.started = False
        self.ended = False
        self.started_ns = 0
        """As the ground truth has it. That is to be read when nothing is measured: it grows, and
        reading it takes a core for as long."""
        self._site: Site | None = None

    @property
    def id(self) -> str:
        """Names this fault in the ground truth."""
        return f"{self.holder.pid}-{self.holder.serial}"

    @property
    def site(self) -> Site:
        """Where it was armed."""
        assert self._site is not None, "fault is not armed"
        return self._site

    def parameters(self) -> dict[str, object]:
        """What the ground truth says beside kind and target."""
        return {}

    def arm(self, site: Site) -> None:
        """Check the target and open what is needed, so that ``start`` is quick.

        Raises:
            TopologyError: the lab has no such target, or the fault does not apply to it.
        """
        target = site.topology.target(self.target_text)
        if not isinstance(target, self.targets):
            want = " or ".join(_EXAMPLE[t] for t in self.targets)
            raise TopologyError(f"fault {self.kind} takes a target like {want}, not '{target}'")
        self._site = site
        self._prepare(target)

    def start(self) -> None:
        """Inject it and record that."""
        assert not self.started, "a fault starts once"
        before = self.started_ns = now_ns()
        self.started = True
        self._start()
        self._record("start", before)

    def end(self) -> None:
        """Take it back and record that; a second call does nothing."""
        if not self.started or self.ended:
            return
        before = now_ns()
        self.ended = True
        self._end()
        self._record("end", before)

    def wait(self) -> None:
        """Block while the fault has work of its own to do (a flap counts its cycles)."""
        return

    def _record(self, phase: str, before: int) -> None:
        self.site.truth.write(
            before,
            self.kind,
            phase,
            self.target_text,
            id=self.id,
            took_ns=now_ns() - before,
            **self.parameters(),
        )

    @abstractmethod
    def _prepare(self, target: Target) -> None: ...

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Release what ``arm`` opened. ``end`` first."""


_EXAMPLE = {RailTarget: "h1:rail2", HostTarget: "h2", SwitchTarget: "leaf0"}


class PortsDown(Fault):
    """Holds ports administratively down; what is plugged into them sees NO-CARRIER."""

    @abstractmethod
    def _ports(self, target: Target) -> list[Port]: ...

    def _after_up(self) -> None:
        """Put back what the down took away."""

    def _prepare(self, target: Target) -> None:
        self._held = self._ports(target)
        self._stack = ExitStack()
        self._table = HoldTable(self.site.dir.holds)
        self._stack.callback(self._table.close)
        self._setters: dict[str, LinkSetter] = {}
        for ns in sorted({p.ns for p in self._held}):
            names = [p.ifname for p in self._held if p.ns == ns]
            self._setters[ns] = self._stack.enter_context(LinkSetter(ns, names))

    def _start(self) -> None:
        with self._table.locked():
            for port in self._held:
                if self._table.take(port.number, self.holder):
                    self._setters[port.ns].set(port.ifname, up=False)

    def _end(self) -> None:
        with self._table.locked():
            for port in self._held:
                if self._table.release(port.number, self.holder):
                    self._setters[port.ns].set(port.ifname, up=True)
        self._after_up()

    def close(self) -> None:
        """Close the sockets."""
        self._stack.close()


def host_is_dead(site: Site, host: int) -> bool:
    """Whether a node kill of that host is in force."""
    if not os.path.exists(site.dir.holds):  # noqa: PTH110
        return False
    table = HoldTable(site.dir.holds)
    try:
        return any(h.alive for h in table.holders(site.kill_row(host)))
    finally:
        table.close()
