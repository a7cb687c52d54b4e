"""A fault of a guest lab: as `lab.faults.base.Fault`, with the guest's time in the ground truth."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from lab.faults.base import Site
from lab.topology import HostTarget, RailTarget, SwitchTarget, Target, TopologyError
from lab.vm.machine import Vm
from lab.vm.rdma.holds import Resource
from lab.vm.rdma.lab import GuestLab
from lab.vm.rdma.site import GuestSite, TrackedFault
from lab.vm.wire import Result

Span = tuple[int, int]
"""CLOCK_MONOTONIC of the guest in ns: a change took effect between the two."""


class GuestFault(TrackedFault):
    """``arm``, ``start``, ``end``, each once; the ground truth has ``guest_ns`` of each change.

    A start that fails leaves nothing to take back.
    """

    kinds: ClassVar[tuple[str, ...]] = ("namespaces", "pair")
    """Kinds of lab that can do it."""
    alone_on: ClassVar[str] = ""
    """Kind of resource, one a rail, that only one such fault may change at a time; '': none."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._span: Span = (0, 0)

    @property
    def guests(self) -> GuestLab:
        """The lab that it was armed in."""
        assert isinstance(self.site, GuestSite), "fault is not armed in a guest lab"
        guests: GuestLab = self.site.guests
        return guests

    def arm(self, site: Site) -> None:
        """Check target and kind of the lab.

        Raises:
            TopologyError: the lab has no such target, or cannot do that.
        """
        if not isinstance(site, GuestSite):
            raise TopologyError(f"fault {self.kind} needs an RDMA lab in virtual machines")
        if site.guests.kind not in self.kinds:
            raise TopologyError(
                f"fault {self.kind} needs a lab of kind {' or '.join(self.kinds)}, "
                f"not {site.guests.kind}"
            )
        super().arm(site)

    def parameters(self) -> dict[str, object]:
        """When it happened on the guest's clock, and what else was asked for."""
        return {"guest_ns": list(self._span), **self.details()}

    def details(self) -> dict[str, object]:
        """Parameters beside kind and target."""
        return {}

    def rails(self) -> list[tuple[int, int]]:
        """The (host, rail) pairs that the target covers."""
        topology = self.guests.topology
        match self._target:
            case RailTarget(host, rail):
                return [(host, rail)]
            case HostTarget(host):
                return [(host, rail) for rail in range(topology.rails)]
            case SwitchTarget(_, index):
                return [(host, index) for host in range(topology.hosts)]

    @property
    def target_host(self) -> int:
        """The host whose clock tells when it happened; of a leaf that of the first host."""
        match self._target:
            case RailTarget(host, _) | HostTarget(host):
                return host
            case SwitchTarget():
                return 0

    def timed(self, *results: Result) -> Span:
        """The span of commands that ran one after another on one machine."""
        return results[0].began_ns, results[-1].ended_ns

    def _prepare(self, target: Target) -> None:
        self._target = target

    def _start(self) -> None:
        self._take_alone()
        try:
            self._span = self.change()
        except BaseException:
            self._release_alone()
            raise
        self.injected = True

    def end(self) -> None:
        """Take it back and record that; nothing when it did not start, or has ended."""
        if self.injected:
            super().end()

    def _end(self) -> None:
        self.injected = False
        try:
            self._span = self.repair()
        finally:
            self._release_alone()

    def _alone(self) -> list[Resource]:
        return [Resource(self.alone_on, *rail) for rail in self.rails()] if self.alone_on else []

    def _take_alone(self) -> None:
        holds = self.guests.holds
        with holds.locked():
            if any(holds.held(resource) for resource in self._alone()):
                raise TopologyError(f"a fault {self.kind} of {self.target_text} is in force")
            for resource in self._alone():
                holds.take(resource, self.id)

    def _release_alone(self) -> None:
        with self.guests.holds.locked():
            for resource in self._alone():
                self.guests.holds.release(resource, self.id)

    def close(self) -> None:
        """Nothing is held open."""

    @abstractmethod
    def change(self) -> Span:
        """Inject it; when it took effect."""

    @abstractmethod
    def repair(self) -> Span:
        """Take it back; when that took effect."""


class HeldFault(GuestFault):
    """Breaks resources that several faults may break at once: the last end repairs them."""

    what: ClassVar[str]
    """Name of the kind of resource; the same in all faults that break it."""
    whole_host: ClassVar[bool] = False
    """Whether there is one a host; else there is one a rail."""

    def resources(self) -> list[Resource]:
        """What it breaks."""
        if self.whole_host:
            return [Resource(self.what, self.target_host)]
        return [Resource(self.what, host, rail) for host, rail in self.rails()]

    @property
    def clock(self) -> Vm:
        """The machine whose clock says when it happened."""
        return self.guests.place(self.target_host).vm

    @abstractmethod
    def set_broken(self, host: int, rail: int, *, broken: bool) -> None:
        """Break or repair one resource; the rail is -1 where it is one a host."""

    def change(self) -> Span:
        """Break what nobody has broken."""
        return self._apply(broken=True)

    def repair(self) -> Span:
        """Repair what nobody else keeps broken."""
        return self._apply(broken=False)

    def _apply(self, *, broken: bool) -> Span:
        holds = self.guests.holds
        began = self.clock.now_ns()
        with holds.locked():
            for resource in self.resources():
                turn = holds.take if broken else holds.release
                if turn(resource, self.id):
                    self.set_broken(resource.host, resource.rail, broken=broken)
        return began, self.clock.now_ns()
