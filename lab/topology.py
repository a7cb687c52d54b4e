"""What a lab consists of: namespaces, wires, addresses, routes. Pure description.

Hosts × rails, one leaf per rail (a bridge whose own address is the gateway of that rail's subnet),
leaves joined by routed spines. Nothing here touches the kernel; ``lab.network.build`` does what it
says.

Numbering, for rail r, host i, spine s: host ``10.<r>.0.<i+1>/24`` and ``fd00:<r>::<i+1>/64``,
gateway ``10.<r>.0.254`` and ``fd00:<r>::fe``; leaf-spine links ``10.<250+s>.<r>.0/30`` and
``fd00:fe0<s>:<r>::/64`` (leaf .1, spine .2). IPv6 groups are hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

PREFIX = "fl"
MAX_HOSTS = 64
MAX_RAILS = 16
MAX_SPINES = 4
TABLE_BASE = 100
"""Routing table of rail r on a host is ``TABLE_BASE + r``."""
HOST_IFINDEX = 1000
SPINE_IFINDEX = 2000
MANAGEMENT_IFINDEX = 900
MANAGEMENT = "mgmt0"
"""A host's interface of the management network."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit\Z")
_TARGET = re.compile(r"(?P<kind>h|host|leaf|spine)(?P<index>\d+)(?::rail(?P<rail>\d+))?\Z")

Role = Literal["host", "leaf", "spine", "management"]


class TopologyError(ValueError):
    """A size, name, rate or target that no lab can have; the text says what is allowed."""


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a wire: interface ``ifname`` in namespace ``ns``.

    ``number`` is the port's place in the lab's table of held-down ports.
    """

    ns: str
    ifname: str
    number: int


@dataclass(frozen=True, slots=True)
class Wire:
    """A veth pair. ``a`` gets ``a_ifindex``, ``b`` the next free index of its namespace.

    The two must differ: the kernel treats a device whose peer has the same index as physical and
    then reports its link changes at most once a second (net/core/link_watch.c,
    linkwatch_urgent_event), which would keep the leaf's bridge port shut that long.
    """

    a: Port
    b: Port
    a_ifindex: int
    rate_bps: int


@dataclass(frozen=True, slots=True)
class Address:
    """An interface address in prefix notation."""

    ifname: str
    ip: str
    prefix: int

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.ip else 4


@dataclass(frozen=True, slots=True)
class Route:
    """``dst`` (``default`` or a prefix) by gateways, or on-link when there are none.

    Several gateways make a multipath route. ``ifnames`` has one entry per gateway, or one alone.
    """

    dst: str
    family: int
    gateways: tuple[str, ...]
    ifnames: tuple[str, ...]
    table: int = 254
    source: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Packets from ``source`` look ``table`` up."""

    source: str
    family: int
    table: int
    priority: int


@dataclass(frozen=True, slots=True)
class HostTarget:
    """A whole host."""

    host: int

    def __str__(self) -> str:
        return f"h{self.host}"


@dataclass(frozen=True, slots=True)
class RailTarget:
    """One host's port on one rail."""

    host: int
    rail: int

    def __str__(self) -> str:
        return f"h{self.host}:rail{self.rail}"


@dataclass(frozen=True, slots=True)
class SwitchTarget:
    """A leaf or a spine."""

    role: Literal["leaf", "spine"]
    index: int

    def __str__(self) -> str:
        return f"{self.role}{self.index}"


Target = HostTarget | RailTarget | SwitchTarget


MOST_GSO = 65536
"""Bytes; the kernel's default (GSO_LEGACY_MAX_SIZE)."""


def parse_rate(text: str) -> int:
    """``500mbit``, ``1gbit``, ``64kbit`` to bit/s; 0 or ``none`` means unshaped."""
    if text.strip().lower() in {"0", "none"}:
        return 0
    match = _RATE.match(text.strip().lower())
    if not match:
        raise TopologyError(f"rate '{text}': a number with kbit, mbit or gbit, or none")
    return round(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2]])


@dataclass(frozen=True)
class Topology:
    """A lab of ``hosts`` × ``rails``; ``spines`` = 0 leaves only same-rail paths."""

    name: str = "lab"
    hosts: int = 4
    rails: int = 4
    spines: int = 2
    rate_bps: int = 500_000_000
    burst_bytes: int = 64 * 1024
    queue_us: int = 10_000
    """Longest wait in a shaper's queue at full rate, before it drops."""
    whole: bool = True
    """Shapers pass offload packets whole, which are made no larger than that. False: they are as
    large as the kernel makes them, and what is larger than a burst leaves in frames, as on a wire;
    that takes ten times the CPU."""
    management: bool = False
    """A network of its own, unshaped, that joins all hosts and one namespace for broker and
    fabric-compute."""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise TopologyError(
                f"lab name '{self.name}': lower-case letters, digits and inner dashes, at most 32"
            )
        for what, value, low, high in (
            ("hosts", self.hosts, 1, MAX_HOSTS),
            ("rails", self.rails, 1, MAX_RAILS),
            ("spines", self.spines, 0, MAX_SPINES),
        ):
            if not low <= value <= high:
                raise TopologyError(f"{what} = {value}: {low} to {high}")
        if self.rate_bps and not 1_000_000 <= self.rate_bps <= 34_000_000_000:
            raise TopologyError(f"rate = {self.rate_bps} bit/s: 1mbit to 34gbit, or none")

    @property
    def rail_only(self) -> bool:
        """Whether rails are islands: no spine joins them."""
        return self.spines == 0

    @property
    def gso_max_bytes(self) -> int:
        """Largest offload packet; of `whole` ones, with the headers of its segments."""
        return min(MOST_GSO, self.burst_bytes * 9 // 10) if self.whole else MOST_GSO

    # Namespaces

    def ns(self, role: Role, index: int) -> str:
        """Namespace of a host, leaf or spine."""
        short = {"host": "h", "management": "mgmt"}.get(role, role)
        return f"{PREFIX}-{self.name}-{short}{index}"

    def namespaces(self) -> Iterator[tuple[Role, int, str]]:
        """All namespaces: leaves and spines first, so that a host comes up into a ready fabric."""
        for s in range(self.spines):
            yield "spine", s, self.ns("spine", s)
        for r in range(self.rails):
            yield "leaf", r, self.ns("leaf", r)
        if self.management:
            yield "management", 0, self.ns("management", 0)
        for i in range(self.hosts):
            yield "host", i, self.ns("host", i)

    # Ports and wires

    def host_port(self, host: int, rail: int) -> Port:
        """The NIC."""
        return Port(self.ns("host", host), f"rail{rail}", 2 * (host * self.rails + rail))

    def leaf_port(self, host: int, rail: int) -> Port:
        """The switch port that the NIC is plugged into."""
        return Port(self.ns("leaf", rail), f"h{host}", 2 * (host * self.rails + rail) + 1)

    def uplink(self, rail: int, spine: int) -> Port:
        """A leaf's port towards a spine."""
        base = 2 * self.hosts * self.rails
        number = base + 2 * (rail * MAX_SPINES + spine)
        return Port(self.ns("leaf", rail), f"spine{spine}", number)

    def downlink(self, rail: int, spine: int) -> Port:
        """A spine's port towards a leaf."""
        return Port(self.ns("spine", spine), f"leaf{rail}", self.uplink(rail, spine).number + 1)

    def management_port(self, host: int) -> Port:
        """A host's port of the management network."""
        return Port(self.ns("host", host), MANAGEMENT, self._fabric_ports + 2 * host)

    @property
    def _fabric_ports(self) -> int:
        return 2 * self.hosts * self.rails + 2 * self.rails * MAX_SPINES

    @cached_property
    def port_count(self) -> int:
        """One more than the largest port number."""
        return self._fabric_ports + (2 * self.hosts if self.management else 0)

    def wires(self) -> Iterator[Wire]:
        """All veth pairs; leaf-spine ones carry what all hosts of a leaf can send."""
        for r in range(self.rails):
            for s in range(self.spines):
                yield Wire(
                    self.downlink(r, s),
                    self.uplink(r, s),
                    SPINE_IFINDEX + r,
                    min(self.rate_bps * self.hosts, 34_000_000_000),
                )
        for i in range(self.hosts):
            for r in range(self.rails):
                yield Wire(
                    self.host_port(i, r), self.leaf_port(i, r), HOST_IFINDEX + r, self.rate_bps
                )
            if self.management:
                port = self.management_port(i)
                switch = Port(self.ns("management", 0), f"h{i}", port.number + 1)
                yield Wire(port, switch, MANAGEMENT_IFINDEX, 0)

    # Addresses

    def address4(self, host: int, rail: int) -> str:
        """IPv4 address of a host's rail."""
        return f"10.{rail}.0.{host + 1}"

    def address6(self, host: int, rail: int) -> str:
        """IPv6 address of a host's rail."""
        return f"fd00:{rail:x}::{host + 1:x}"

    def gateway4(self, rail: int) -> str:
        """The leaf's own address."""
        return f"10.{rail}.0.254"

    def gateway6(self, rail: int) -> str:
        """The leaf's own address."""
        return f"fd00:{rail:x}::fe"

    def management4(self, host: int | None = None) -> str:
        """IPv4 address on the management network; None: where broker and fabric-compute are."""
        return f"10.249.0.{254 if host is None else host + 1}"

    def addresses(self, role: Role, index: int) -> Iterator[Address]:
        """What ``lab.network.build`` assigns in that namespace."""
        if role == "host":
            for r in range(self.rails):
                yield Address(f"rail{r}", self.address4(index, r), 24)
                yield Address(f"rail{r}", self.address6(index, r), 64)
            if self.management:
                yield Address(MANAGEMENT, self.management4(index), 24)
        elif role == "management":
            yield Address("br0", self.management4(), 24)
        elif role == "leaf":
            yield Address("br0", self.gateway4(index), 24)
            yield Address("br0", self.gateway6(index), 64)
            for s in range(self.spines):
                yield Address(f"spine{s}", f"10.{250 + s}.{index}.1", 30)
                yield Address(f"spine{s}", f"fd00:fe{s:02x}:{index:x}::1", 64)
        else:
            for r in range(self.rails):
                yield Address(f"leaf{r}", f"10.{250 + index}.{r}.2", 30)
                yield Address(f"leaf{r}", f"fd00:fe{index:02x}:{r:x}::2", 64)

    def routes(self, role: Role, index: int) -> Iterator[Route]:
        """Beyond the connected ones that the kernel adds itself."""
        if role == "host":
            for r in range(self.rails):
                table = TABLE_BASE + r
                me4, me6 = self.address4(index, r), self.address6(index, r)
                yield Route(f"10.{r}.0.0/24", 4, (), (f"rail{r}",), table, me4)
                yield Route("default", 4, (self.gateway4(r),), (f"rail{r}",), table, me4)
                yield Route(f"fd00:{r:x}::/64", 6, (), (f"rail{r}",), table, me6)
                yield Route("default", 6, (self.gateway6(r),), (f"rail{r}",), table, me6)
        elif role == "leaf" and self.spines:
            ups = tuple(f"spine{s}" for s in range(self.spines))
            via4 = tuple(f"10.{250 + s}.{index}.2" for s in range(self.spines))
            via6 = tuple(f"fd00:fe{s:02x}:{index:x}::2" for s in range(self.spines))
            yield Route("default", 4, via4, ups)
            yield Route("default", 6, via6, ups)
        elif role == "spine":
            for r in range(self.rails):
                yield Route(f"10.{r}.0.0/24", 4, (f"10.{250 + index}.{r}.1",), (f"leaf{r}",))
                yield Route(f"fd00:{r:x}::/64", 6, (f"fd00:fe{index:02x}:{r:x}::1",), (f"leaf{r}",))

    def rules(self, host: int) -> Iterator[Rule]:
        """Source routing: what is bound to a rail's address leaves by that rail."""
        for r in range(self.rails):
            yield Rule(self.address4(host, r), 4, TABLE_BASE + r, 1000 + r)
            yield Rule(self.address6(host, r), 6, TABLE_BASE + r, 1000 + r)

    # Targets of faults and commands

    def target(self, text: str) -> Target:
        """Parse ``h1``, ``h1:rail2``, ``leaf0`` or ``spine1``.

        Raises:
            TopologyError: not of that form, or this lab has no such host, rail, leaf or spine.
        """
        match = _TARGET.match(text.strip())
        if not match:
            raise TopologyError(f"target '{text}': h<i>, h<i>:rail<r>, leaf<r> or spine<s>")
        kind, index = match["kind"], int(match["index"])
        if kind in {"h", "host"}:
            self._check("host", index, self.hosts, "h")
            if match["rail"] is None:
                return HostTarget(index)
            rail = int(match["rail"])
            self._check("rail", rail, self.rails, "rail")
            return RailTarget(index, rail)
        if match["rail"] is not None:
            raise TopologyError(f"target '{text}': only a host has rails")
        if kind == "leaf":
            self._check("leaf", index, self.rails, "leaf")
            return SwitchTarget("leaf", index)
        self._check("spine", index, self.spines, "spine")
        return SwitchTarget("spine", index)

    def _check(self, what: str, index: int, count: int, short: str) -> None:
        if count == 0:
            raise TopologyError(f"lab '{self.name}' has no {what} (rail only)")
        if index >= count:
            raise TopologyError(
                f"lab '{self.name}' has no {what} {index}: {short}0 to {short}{count - 1}"
            )
