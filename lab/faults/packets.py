"""Packets that vanish while the carrier stays up: black hole, random loss, resets."""

from __future__ import annotations

from typing import ClassVar

from lab.faults.base import Direction, Fault
from lab.faults.ports import switch_ports
from lab.network.nftdrop import SCALE, Answer, Drop, DropTable, Hook
from lab.topology import (
    HostTarget,
    Port,
    RailTarget,
    SwitchTarget,
    Target,
    TopologyError,
)


class PacketFault(Fault):
    """Drops packets at the leaf's ports; carrier stays up."""

    targets = (RailTarget, HostTarget, SwitchTarget)
    answer: ClassVar[Answer] = "silence"

    def __init__(
        self,
        target: str,
        direction: Direction = "both",
        percent: float = 100.0,
        after_bytes: int = 0,
    ) -> None:
        super().__init__(target)
        if direction not in {"tx", "rx", "both"}:
            raise TopologyError(f"direction '{direction}': tx, rx or both")
        if not 0 < percent <= 100:
            raise TopologyError(f"percent = {percent}: more than 0, at most 100")
        if after_bytes < 0:
            raise TopologyError(f"after_bytes = {after_bytes}: 0 or more")
        self.direction: Direction = direction
        self.percent = percent
        self.after_bytes = after_bytes

    def parameters(self) -> dict[str, object]:
        """Direction and share, and how much passes before."""
        said: dict[str, object] = {"direction": self.direction, "percent": self.percent}
        return said | ({"after_bytes": self.after_bytes} if self.after_bytes else {})

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
                Drop(port.ifname, hook, share, self.after_bytes, self.answer)
                for hook in wanted[self.direction]
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

    def packets(self) -> dict[Direction, int]:
        """Packets dropped (or answered) so far, as the host sees them; while it is in force."""
        found: dict[Direction, int] = {}
        for table in self._tables:
            for (_, hook), count in table.packets().items():
                way: Direction = "tx" if hook == "ingress" else "rx"
                found[way] = found.get(way, 0) + count
        return found

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
    """Everything is dropped, one way or both, bridged or routed, ARP and ND too.

    With ``after_bytes`` each direction first lets so many bytes through at each port: it strikes at
    that point of an exchange, such as a handshake, however fast the machine is.
    """

    kind = "blackhole"

    def __init__(self, target: str, direction: Direction = "both", after_bytes: int = 0) -> None:
        super().__init__(target, direction, 100.0, after_bytes)


class Loss(PacketFault):
    """``percent`` of the packets are dropped at random, each direction by itself.

    A packet is what the stack hands over: with segmentation offload that is up to 64 KB of TCP.
    """

    kind = "loss"

    def __init__(self, target: str, percent: float, direction: Direction = "both") -> None:
        super().__init__(target, direction, percent)


class ResetStorm(PacketFault):
    """Every TCP packet that a host sends by this port is dropped and answered with RST.

    What a stateful firewall does that has lost its state: each connection over the port is reset at
    once, and none is made while it lasts. The kernel builds the RST from the packet, so its
    sequence number is the one that the host expects.
    """

    kind = "reset"
    answer = "reset"

    def __init__(self, target: str) -> None:
        super().__init__(target, "tx")
