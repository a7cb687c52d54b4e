"""RDMA devices, the module, processes and whole machines."""

from __future__ import annotations

from lab.topology import HostTarget, RailTarget
from lab.vm.machine import Vm
from lab.vm.rdma.fault import GuestFault, HeldFault, Span
from lab.vm.rdma.holds import Resource
from lab.vm.rdma.lab import PATIENCE_S, device
from lab.vm.rdma.linkfaults import Carrier


class RxeRemoved(HeldFault):
    """The rail's soft-RoCE device is deleted, and added again: DEVICE_FATAL for who uses it."""

    kind = "rxe"
    what = "device"
    targets = (RailTarget,)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:
        """Delete or add it."""
        (self.guests.remove_rxe if broken else self.guests.add_rxe)(host, rail)


class ModuleReloaded(GuestFault):
    """All devices of a host are deleted and ``rdma_rxe`` is unloaded; at the end all is back.

    One device at a time: see `GuestLab.rxe_lock`.
    """

    kind = "module"
    kinds = ("pair",)
    targets = (HostTarget,)

    def change(self) -> Span:
        """Unload; raises ``VmError`` while a process keeps the module in use."""
        host = self.target_host
        place = self.guests.place(host)
        began = place.vm.now_ns()
        for _, rail in self.rails():
            if place.run(["rdma", "link", "show", f"{device(rail)}/1"]).rc == 0:
                self.guests.remove_rxe(host, rail)
        # A process that has just closed its device holds the module for a moment.
        unload = (
            "for i in 1 2 3 4 5 6 7 8 9; do modprobe -r rdma_rxe && exit; sleep 1; done; exit 1"
        )
        place.run(["sh", "-c", unload]).check()
        return began, place.vm.now_ns()

    def repair(self) -> Span:
        """Load it and add the devices."""
        host = self.target_host
        place = self.guests.place(host)
        began = place.vm.now_ns()
        place.run(["modprobe", "rdma_rxe"]).check()
        for _, rail in self.rails():
            self.guests.add_rxe(host, rail)
        return began, place.vm.now_ns()


class Unplugged(HeldFault):
    """The NIC is taken out of its PCI slot, with all that is on it, and put back."""

    kind = "unplug"
    what = "slot"
    kinds = ("pair",)
    targets = (RailTarget,)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:
        """Take it out or put it back, and wait until the guest has followed."""
        place, topology = self.guests.place(host), self.guests.topology
        there = f"[ -e /sys/class/net/rail{rail} ]"
        place.vm.set_plugged(rail, plugged=not broken)
        condition = f"! {there}" if broken else there
        wait = f"until {condition}; do sleep 0.1; done"
        place.run(["sh", "-c", wait], timeout=PATIENCE_S).check()
        if not broken:
            name = f"rail{rail}"
            own = [a for a in topology.addresses("host", host) if a.ifname == name]
            lines = [f"ip addr add {a.ip}/{a.prefix} dev {name}" for a in own]
            place.script([f"ip link set {name} up", *lines])
            self.guests.add_rxe(host, rail)


class Frozen(HeldFault):
    """SIGSTOP to every process of a host; its kernel and its RDMA device go on answering."""

    kind = "freeze"
    what = "processes"
    whole_host = True
    targets = (HostTarget,)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:  # noqa: ARG002
        """Stop them or let them go on."""
        self.guests.signal_processes(host, "STOP" if broken else "CONT")


class Paused(HeldFault):
    """All virtual CPUs of a host stop: neither kernel nor device answers."""

    kind = "pause"
    what = "machine"
    whole_host = True
    kinds = ("pair",)
    targets = (HostTarget,)

    @property
    def clock(self) -> Vm:
        """The other one's: a paused guest cannot say what time it is."""
        return other_machine(self)

    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:  # noqa: ARG002
        """Stop the machine or let it go on."""
        self.guests.place(host).vm.set_paused(paused=broken)


def other_machine(fault: GuestFault) -> Vm:
    """Of a pair, the machine that the fault leaves alone."""
    return fault.guests.place(1 - fault.target_host).vm


class Killed(GuestFault):
    """Power loss of a machine; at the end it boots again and joins the lab.

    Faults of that host that are in force meanwhile are gone after it: inject them again.
    """

    kind = "kill"
    kinds = ("pair",)
    targets = (HostTarget,)

    def change(self) -> Span:
        """Power off; the times are the other host's."""
        witness = other_machine(self)
        began = witness.now_ns()
        self.guests.place(self.target_host).vm.power_off()
        return began, witness.now_ns()

    def repair(self) -> Span:
        """Power on, boot, and join."""
        witness = other_machine(self)
        began = witness.now_ns()
        self.guests.place(self.target_host).vm.power_on().wait_booted()
        self.guests.prepare(self.target_host)
        return began, witness.now_ns()


class Rebooted(Killed):
    """The reset button: the NICs keep their carrier, all processes are gone."""

    kind = "reboot"

    def change(self) -> Span:
        """Press it."""
        witness = other_machine(self)
        began = witness.now_ns()
        self.guests.place(self.target_host).vm.reset()
        return began, witness.now_ns()

    def repair(self) -> Span:
        """Wait for the boot, and join."""
        witness = other_machine(self)
        began = witness.now_ns()
        self.guests.place(self.target_host).vm.wait_booted()
        self.guests.prepare(self.target_host)
        return began, witness.now_ns()


class HostDown(GuestFault):
    """Power loss of a host that is a namespace: cables pulled, then every process SIGKILLed."""

    kind = "kill"
    kinds = ("namespaces",)
    targets = (HostTarget,)

    def change(self) -> Span:
        """Cables first, so that nothing that dies can say so."""
        return self._apply(up=False)

    def repair(self) -> Span:
        """Cables back; processes are the caller's to start."""
        return self._apply(up=True)

    def _apply(self, *, up: bool) -> Span:
        lab, vm = self.guests, self.guests.place(self.target_host).vm
        began = vm.now_ns()
        with lab.holds.locked():
            for host, rail in self.rails():
                turn = lab.holds.release if up else lab.holds.take
                if turn(Resource(Carrier.what, host, rail), self.id):
                    lab.set_cable(host, rail, up=up)
        if not up:
            lab.signal_processes(self.target_host, "KILL")
        return began, vm.now_ns()
