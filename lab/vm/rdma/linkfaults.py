"""Cables, ports and addresses of a rail."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from lab.topology import HostTarget, RailTarget, SwitchTarget, TopologyError
from lab.vm.rdma.fault import GuestFault, HeldFault, Span
from lab.vm.rdma.holds import Resource
from lab.vm.rdma.lab import LEAST_MTU, MOST_MTU
from lab.vm.rdma.namespaces import NamespaceLab, leaf_port

_FLAPPER = (Path(__file__).parent / "guest" / "flap.py").read_text()


class Carrier(HeldFault):
    """The cable is pulled: the host's NIC loses its carrier and the port goes down (PORT_ERR)."""

    kind = "carrier"
    what = "cable"
    targets: ClassVar[tuple[type, ...]] = (RailTarget, HostTarget)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:
        """Unplug or plug one."""
        self.guests.set_cable(host, rail, up=not broken)


class LeafDown(Carrier):
    """A leaf fails: every host loses that rail."""

    kind = "leaf"
    targets = (SwitchTarget,)


class AdminDown(HeldFault):
    """``ip link set railN down`` on the host."""

    kind = "admin"
    what = "nic"
    targets = (RailTarget,)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:
        """Set it down, or up with the IPv6 addresses that the down took away."""
        place, name = self.guests.place(host), f"rail{rail}"
        if broken:
            place.run(["ip", "link", "set", name, "down"]).check()
            return
        six = f"{self.guests.topology.address6(host, rail)}/64"
        place.script([f"ip link set {name} up", f"ip addr replace {six} dev {name} nodad"])


class Flap(GuestFault):
    """Carrier down and up, ``count`` times; ``down_ms`` down and then ``up_ms`` up.

    ``start`` returns when the last cycle is over. In a pair QEMU pulls the cable and the times are
    the host's; else the guest does it on its own clock.
    """

    kind = "flap"
    alone_on = "flap"
    targets = (RailTarget,)

    def __init__(
        self, target: str, down_ms: float = 300.0, up_ms: float = 300.0, count: int = 1
    ) -> None:
        super().__init__(target)
        for name, value in (("down_ms", down_ms), ("up_ms", up_ms), ("count", count)):
            if value <= 0:
                raise TopologyError(f"{name} = {value}: more than 0")
        self.down_ms, self.up_ms, self.count = down_ms, up_ms, count

    def details(self) -> dict[str, object]:
        """Times and count."""
        return {"down_ms": self.down_ms, "up_ms": self.up_ms, "count": self.count}

    def change(self) -> Span:
        """All cycles; a cable that another fault pulls meanwhile is unplugged afterwards."""
        ((host, rail),) = self.rails()
        holds, cable = self.guests.holds, Resource(Carrier.what, host, rail)
        with holds.locked():
            if not holds.take(cable, self.id):
                holds.release(cable, self.id)
                raise TopologyError(f"the cable of {self.target_text} is pulled already")
        try:
            return self._cycles(host, rail)
        finally:
            with holds.locked():
                if not holds.release(cable, self.id):
                    self.guests.set_cable(host, rail, up=False)

    def _cycles(self, host: int, rail: int) -> Span:
        lab = self.guests
        if isinstance(lab, NamespaceLab):
            words = [leaf_port(host, rail), self.down_ms, self.up_ms, self.count]
            argv = ["python3", "-", *(str(word) for word in words)]
            seconds = (self.down_ms + self.up_ms) * self.count / 1000
            done = lab.fabric.run(argv, stdin=_FLAPPER, timeout=60 + 10 * seconds).check()
            first, last = done.out.split()
            return int(first), int(last)
        vm = lab.place(host).vm
        began = vm.now_ns()
        for _ in range(self.count):
            lab.set_cable(host, rail, up=False)
            time.sleep(self.down_ms / 1000)
            lab.set_cable(host, rail, up=True)
            time.sleep(self.up_ms / 1000)
        return began, vm.now_ns()

    def repair(self) -> Span:
        """Nothing is left to repair."""
        return self._span


class Mtu(GuestFault):
    """The rail's MTU differs from its peers': soft-RoCE's active MTU follows it."""

    kind = "mtu"
    alone_on = "mtu"
    targets = (RailTarget,)

    def __init__(self, target: str, mtu: int = 640) -> None:
        super().__init__(target)
        if not LEAST_MTU <= mtu <= MOST_MTU:
            raise TopologyError(f"mtu = {mtu}: {LEAST_MTU} to {MOST_MTU} bytes")
        self.mtu = mtu

    def details(self) -> dict[str, object]:
        """Bytes."""
        return {"mtu": self.mtu}

    def _set(self, mtu: int) -> Span:
        ((host, rail),) = self.rails()
        argv = ["ip", "link", "set", f"rail{rail}", "mtu", str(mtu)]
        return self.timed(self.guests.run(host, argv).check())

    def change(self) -> Span:
        """Set it; IPv6 addresses survive only 1,280 bytes and more."""
        return self._set(self.mtu)

    def repair(self) -> Span:
        """Set it back, and give the IPv6 address back that a small MTU took away."""
        ((host, rail),) = self.rails()
        span = self._set(self.guests.mtu)
        six = f"{self.guests.topology.address6(host, rail)}/64"
        self.guests.host(host).script([f"ip addr replace {six} dev rail{rail} nodad"])
        return span


class AddressRemoved(HeldFault):
    """The rail has no address and so no GID but the link-local one; link and carrier stay up."""

    kind = "address"
    what = "addresses"
    targets = (RailTarget,)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:
        """Remove them, or give them back in their order, which is that of the GID table."""
        name, topology = f"rail{rail}", self.guests.topology
        lines = [f"ip -4 addr flush dev {name}", f"ip -6 addr flush dev {name} scope global"]
        if not broken:
            own = [a for a in topology.addresses("host", host) if a.ifname == name]
            lines += [f"ip addr add {a.ip}/{a.prefix} dev {name}" for a in own]
        self.guests.host(host).script(lines)


class GidMoved(GuestFault):
    """The GID of the rail's IPv4 address moves to another index, as after a flap in the field.

    Another address takes its place in the table. At the end that one goes and the GID comes back.
    """

    kind = "gid"
    alone_on = "gid"
    targets = (RailTarget,)

    def _move(self, *, away: bool) -> Span:
        ((host, rail),) = self.rails()
        name, own = f"rail{rail}", f"{self.guests.topology.address4(host, rail)}/24"
        other = f"10.{rail}.100.{host + 1}/32"
        between = f"ip addr {'add' if away else 'del'} {other} dev {name}"
        # The table frees an index some time after the address has gone.
        lines = [f"ip addr del {own} dev {name}", "sleep 0.5", between, "sleep 0.5"]
        lines.append(f"ip addr add {own} dev {name}")
        return self.timed(self.guests.host(host).script(lines))

    def change(self) -> Span:
        """Move it."""
        return self._move(away=True)

    def repair(self) -> Span:
        """Move it back."""
        return self._move(away=False)
