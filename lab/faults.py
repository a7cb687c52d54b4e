"""Faults that can be injected into a lab, each with a start and an end.

Faults compose: several on one port at once, and the end of one is not the end of another
(``lab.holds`` for links and freezes, one nftables table per fault for packets). A fault only needs
the lab's directory and its topology, so any process may inject one: tests, the demo, the command
line.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

from lab import build, procs
from lab.holds import Holder, HoldTable
from lab.nftdrop import SCALE, Drop, DropTable, Hook
from lab.registry import LabDir, LabError
from lab.rtlink import LinkSetter
from lab.topology import (
    HostTarget,
    Port,
    RailTarget,
    Role,
    SwitchTarget,
    Target,
    Topology,
    TopologyError,
)
from lab.truth import Truth, now_ns

Direction = Literal["tx", "rx", "both"]
"""As the host sees it: ``tx`` is what it sends, ``rx`` what it should receive."""

FREEZE_S = 2.0

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
        before = now_ns()
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


class Carrier(PortsDown):
    """The cable is pulled: the leaf's end goes down, the host sees NO-CARRIER."""

    kind = "carrier"
    targets = (RailTarget,)

    def _ports(self, target: Target) -> list[Port]:
        assert isinstance(target, RailTarget)
        return [self.site.topology.leaf_port(target.host, target.rail)]


class AdminDown(PortsDown):
    """``ip link set railN down`` on the host. Its routes come back at the end."""

    kind = "admin"
    targets = (RailTarget,)

    def _ports(self, target: Target) -> list[Port]:
        assert isinstance(target, RailTarget)
        self._where = target
        return [self.site.topology.host_port(target.host, target.rail)]

    def _after_up(self) -> None:
        where = self._where
        build.restore_routes(self.site.topology, "host", where.host, f"rail{where.rail}")


class SwitchDown(PortsDown):
    """A leaf or a spine is gone with all its ports."""

    kind = "switch"
    targets = (SwitchTarget,)
    role: ClassVar[Role | None] = None

    def arm(self, site: Site) -> None:
        """Refuse a leaf where a spine is meant and the other way round."""
        target = site.topology.target(self.target_text)
        if self.role and (not isinstance(target, SwitchTarget) or target.role != self.role):
            raise TopologyError(f"fault {self.kind} takes a target like {self.role}0")
        super().arm(site)

    def _ports(self, target: Target) -> list[Port]:
        assert isinstance(target, SwitchTarget)
        self._where = target
        return switch_ports(self.site.topology, target)

    def _after_up(self) -> None:
        build.restore_routes(self.site.topology, self._where.role, self._where.index)


class LeafDown(SwitchDown):
    """A leaf fails: every host loses that rail."""

    kind = "leaf"
    role = "leaf"


class SpineDown(SwitchDown):
    """A spine fails: cross-rail traffic has the other spines."""

    kind = "spine"
    role = "spine"


def switch_ports(topology: Topology, target: SwitchTarget) -> list[Port]:
    """All ports of a leaf or a spine."""
    if target.role == "spine":
        return [topology.downlink(r, target.index) for r in range(topology.rails)]
    hosts = [topology.leaf_port(i, target.index) for i in range(topology.hosts)]
    return hosts + [topology.uplink(target.index, s) for s in range(topology.spines)]


class PacketFault(Fault):
    """Drops packets at the leaf's ports; carrier stays up."""

    targets = (RailTarget, HostTarget, SwitchTarget)

    def __init__(self, target: str, direction: Direction = "both", percent: float = 100.0) -> None:
        super().__init__(target)
        if direction not in {"tx", "rx", "both"}:
            raise TopologyError(f"direction '{direction}': tx, rx or both")
        if not 0 < percent <= 100:
            raise TopologyError(f"percent = {percent}: more than 0, at most 100")
        self.direction: Direction = direction
        self.percent = percent

    def parameters(self) -> dict[str, object]:
        """Direction and share."""
        return {"direction": self.direction, "percent": self.percent}

    def _prepare(self, target: Target) -> None:
        # What the host sends comes in at the leaf's port.
        wanted: dict[Direction, list[Hook]] = {
            "tx": ["ingress"],
            "rx": ["egress"],
            "both": ["ingress", "egress"],
        }
        share = max(1, round(self.percent / 100 * SCALE))
        by_ns: dict[str, list[Drop]] = {}
        for port in self._ports(target):
            by_ns.setdefault(port.ns, []).extend(
                Drop(port.ifname, hook, share) for hook in wanted[self.direction]
            )
        name = f"fault_{self.holder.pid}_{self.holder.start}_{self.holder.serial}"
        self._tables = [DropTable(ns, name, drops) for ns, drops in by_ns.items()]

    def _ports(self, target: Target) -> list[Port]:
        topology = self.site.topology
        if isinstance(target, RailTarget):
            return [topology.leaf_port(target.host, target.rail)]
        if isinstance(target, HostTarget):
            return [topology.leaf_port(target.host, r) for r in range(topology.rails)]
        return switch_ports(topology, target)

    def _start(self) -> None:
        for table in self._tables:
            table.install()

    def _end(self) -> None:
        for table in self._tables:
            table.remove()

    def close(self) -> None:
        """Close the sockets."""
        for table in self._tables:
            table.close()


class BlackHole(PacketFault):
    """Everything is dropped, one way or both, bridged or routed, ARP and ND too."""

    kind = "blackhole"

    def __init__(self, target: str, direction: Direction = "both") -> None:
        super().__init__(target, direction, 100.0)


class Loss(PacketFault):
    """``percent`` of the packets are dropped at random, each direction by itself.

    A packet is what the stack hands over: with segmentation offload that is up to 64 KB of TCP.
    """

    kind = "loss"

    def __init__(self, target: str, percent: float, direction: Direction = "both") -> None:
        super().__init__(target, direction, percent)


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
        # Again until nobody is left out: a process may fork before it is scheduled to stop.
        deadline = time.monotonic() + FREEZE_S
        while left := [p for p in procs.inhabitants([self._ns]) if not p.stopped]:
            for who in left:
                who.signal(signal.SIGSTOP)
            if time.monotonic() > deadline:
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
        return [topology.host_port(target.host, r) for r in range(topology.rails)]

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


def reap(site: Site) -> None:
    """End what faults of processes that are gone have left: held ports and freezes.

    Packet drops need no reaping: the kernel removes their tables with the process.
    """
    topology = site.topology
    rows: dict[int, Callable[[], None]] = {}

    def up(port: Port) -> Callable[[], None]:
        def bring_up() -> None:
            with LinkSetter(port.ns, [port.ifname]) as setter:
                setter.set(port.ifname, up=True)

        return bring_up

    def thaw(host: int) -> Callable[[], None]:
        def wake() -> None:
            for who in procs.inhabitants([topology.ns("host", host)]):
                who.signal(signal.SIGCONT)

        return wake

    for wire in topology.wires():
        for port in (wire.a, wire.b):
            rows[port.number] = up(port)
    for host in range(topology.hosts):
        rows[site.freeze_row(host)] = thaw(host)
        rows[site.kill_row(host)] = lambda: None
    table = HoldTable(site.dir.holds)
    changed = False
    try:
        with table.locked():
            for row, act in rows.items():
                if table.reap(row):
                    act()
                    changed = True
    finally:
        table.close()
    if changed:
        for role, index, _ in topology.namespaces():
            build.restore_routes(topology, role, index)


def host_is_dead(site: Site, host: int) -> bool:
    """Whether a node kill of that host is in force."""
    if not os.path.exists(site.dir.holds):  # noqa: PTH110
        return False
    table = HoldTable(site.dir.holds)
    try:
        return any(h.alive for h in table.holders(site.kill_row(host)))
    finally:
        table.close()
