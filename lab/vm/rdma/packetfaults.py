"""Packets that vanish in the network while every carrier stays up: nftables and netem."""

from __future__ import annotations

from typing import ClassVar

from lab.faults.base import Direction
from lab.topology import HostTarget, RailTarget, SwitchTarget, TopologyError
from lab.vm.rdma.fault import GuestFault, Span
from lab.vm.rdma.place import Place

ROCE_PORT = 4791
"""UDP port of RoCE v2 (InfiniBand Architecture Specification, Annex A17)."""
RC_ACKNOWLEDGE = 0x11
"""Opcode of an RC acknowledgement, in the first byte of the base transport header."""
_ROCE = f"udp dport {ROCE_PORT}"
_ALL_RAILS = (RailTarget, HostTarget, SwitchTarget)


def table_text(name: str, chains: list[tuple[str, str]], rules: tuple[str, ...]) -> str:
    """An nftables table that applies ``rules`` at (device, hook) pairs. Pure."""
    parts = [f"table netdev {name} {{"]
    for device, hook in chains:
        head = f'type filter hook {hook} device "{device}" priority 0; policy accept;'
        parts += [f"chain {hook}_{device} {{", head, *rules, "}"]
    return "\n".join([*parts, "}"]) + "\n"


class PacketFault(GuestFault):
    """Drops packets outside of the host, ``direction`` as the host sees it."""

    targets = _ALL_RAILS
    rules: ClassVar[tuple[str, ...]]
    """Of nftables."""

    def __init__(self, target: str, direction: Direction = "both") -> None:
        super().__init__(target)
        if direction not in {"tx", "rx", "both"}:
            raise TopologyError(f"direction '{direction}': tx, rx or both")
        self.direction: Direction = direction

    def details(self) -> dict[str, object]:
        """Direction."""
        return {"direction": self.direction}

    @property
    def _table(self) -> str:
        return f"fault_{self.id.replace('-', '_')}"

    def change(self) -> Span:
        """Install the tables."""
        self._chains: dict[Place, list[tuple[str, str]]] = {}
        for host, rail in self.rails():
            for place, device, hook in self.guests.drop_points(host, rail, self.direction):
                chains = self._chains.setdefault(place, [])
                if (device, hook) not in chains:
                    chains.append((device, hook))
        spans = []
        for place, chains in self._chains.items():
            text = table_text(self._table, chains, self.rules)
            spans.append(self.timed(place.run(["nft", "-f", "-"], stdin=text).check()))
        return spans[0][0], spans[-1][1]

    def repair(self) -> Span:
        """Delete them."""
        argv = ["nft", "delete", "table", "netdev", self._table]
        spans = [self.timed(place.run(argv).check()) for place in self._chains]
        return spans[0][0], spans[-1][1]


class BlackHole(PacketFault):
    """Everything is dropped, ARP and neighbour discovery too."""

    kind = "blackhole"
    rules = ("counter drop",)


class RoceDrop(PacketFault):
    """RoCE v2 is dropped and everything else passes: IP fine, RDMA broken."""

    kind = "roce-drop"
    rules = (f"{_ROCE} counter drop",)


class IpDrop(PacketFault):
    """Everything but RoCE v2 and address resolution is dropped: RDMA fine, IP broken."""

    kind = "ip-drop"
    rules = (
        f"{_ROCE} accept",
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        "meta protocol { ip, ip6 } counter drop",
    )


class AckDrop(PacketFault):
    """RC acknowledgements alone are dropped: data arrives and the sender does not learn it."""

    kind = "ack-drop"
    rules = (f"{_ROCE} @th,64,8 {RC_ACKNOWLEDGE:#x} counter drop",)


class Loss(PacketFault):
    """``percent`` of the packets are dropped at random, each direction by itself."""

    kind = "loss"

    def __init__(self, target: str, percent: float = 5.0, direction: Direction = "both") -> None:
        super().__init__(target, direction)
        if not 0 < percent <= 100:
            raise TopologyError(f"percent = {percent}: more than 0, at most 100")
        self.percent = percent
        share = max(1, round(percent * 1000))
        self.rules = (f"numgen random mod 100000 < {share} counter drop",)  # type: ignore[misc]

    def details(self) -> dict[str, object]:
        """Direction and share."""
        return {**super().details(), "percent": self.percent}


class Netem(GuestFault):
    """A netem queue on what the host sends, receives, or both.

    Args:
        target: a rail.
        spec: as tc-netem(8) has it, such as ``delay 5ms 2ms`` or ``loss 10%``.
        direction: as the host sees it.
    """

    kind = "netem"
    alone_on = "queue"
    targets = (RailTarget,)

    def __init__(self, target: str, spec: str = "loss 5%", direction: Direction = "tx") -> None:
        super().__init__(target)
        if direction not in {"tx", "rx", "both"}:
            raise TopologyError(f"direction '{direction}': tx, rx or both")
        self.spec = spec.split()
        self.direction: Direction = direction

    def details(self) -> dict[str, object]:
        """Specification and direction."""
        return {"spec": " ".join(self.spec), "direction": self.direction}

    def _points(self) -> list[tuple[Place, str]]:
        return [
            point
            for host, rail in self.rails()
            for point in self.guests.shape_points(host, rail, self.direction)
        ]

    def change(self) -> Span:
        """Add the queues; raises ``VmError`` where there is one already."""
        spans = []
        for place, device in self._points():
            argv = ["tc", "qdisc", "add", "dev", device, "root", "netem", *self.spec]
            spans.append(self.timed(place.run(argv).check()))
        return spans[0][0], spans[-1][1]

    def repair(self) -> Span:
        """Delete them."""
        spans = []
        for place, device in self._points():
            argv = ["tc", "qdisc", "del", "dev", device, "root"]
            spans.append(self.timed(place.run(argv).check()))
        return spans[0][0], spans[-1][1]
