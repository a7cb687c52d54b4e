"""Ports that go down: a cable, a rail taken down by an operator, a leaf, a spine."""

from __future__ import annotations

from typing import ClassVar

from lab.faults.base import PortsDown, Site
from lab.network import build
from lab.topology import (
    Port,
    RailTarget,
    Role,
    SwitchTarget,
    Target,
    Topology,
    TopologyError,
)


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
