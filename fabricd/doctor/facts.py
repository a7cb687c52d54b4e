"""What `fabricctl doctor` knows of a host: immutable facts, as gathered, without judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any

EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
ETHERNET = "Ethernet"
ROCE_V2 = "RoCE v2"
GID_HEADER = "index  GID                                      type        interface"
"""Above rows of `Gid.line`."""


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table.

    Attributes:
        index: in the table, from 0.
        value: eight groups of hexadecimal digits; empty when it cannot be read.
        kind: ``RoCE v2``, ``IB/RoCE v1``, or empty when it cannot be read.
        netdev: the interface that the entry belongs to; empty when it cannot be read.
        error: why the entry cannot be read; empty when it can.
    """

    index: int
    value: str
    kind: str = ""
    netdev: str = ""
    error: str = ""

    @property
    def empty(self) -> bool:
        """Whether the entry holds no GID."""
        return not self.value or self.value == EMPTY_GID

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The GID as an IP address, IPv4 where it is an IPv4-mapped one; None for an empty one."""
        if self.empty:
            return None
        try:
            address = IPv6Address(self.value)
        except ValueError:
            return None
        return address.ipv4_mapped or address

    @property
    def link_local(self) -> bool:
        """Whether it is fe80::/10, which no router forwards."""
        address = self.address
        return address is not None and address.version == 6 and address.is_link_local

    def line(self) -> str:
        """The entry as one row of a table."""
        if self.error:
            return f"{self.index:>5}  cannot be read: {self.error}"
        return f"{self.index:>5}  {self.value:<39}  {self.kind or '-':<10}  {self.netdev or '-'}"


@dataclass(frozen=True, slots=True)
class VerbsPort:
    """One port of a verbs device.

    Attributes:
        device: its verbs device.
        number: from 1.
        link_layer: ``Ethernet`` or ``InfiniBand``.
        state: ``ACTIVE``, ``DOWN``, ``INIT``, …; empty when it cannot be read.
        rate: as sysfs says it, ``100 Gb/sec (4X EDR)``.
        gids: the table, without entries that are empty and readable.
        netdevs: interfaces that the table or the device names.
        active_mtu: bytes, as verbs say it; None when verbs cannot be asked.
        max_mtu: bytes, likewise.
        traffic_class: of the device, which overrides what a queue pair asks; None: it has none.
    """

    device: str
    number: int
    link_layer: str = ETHERNET
    state: str = ""
    rate: str = ""
    gids: tuple[Gid, ...] = ()
    netdevs: tuple[str, ...] = ()
    active_mtu: int | None = None
    max_mtu: int | None = None
    traffic_class: int | None = None

    @property
    def roce(self) -> bool:
        """Whether the port is Ethernet."""
        return self.link_layer == ETHERNET

    @property
    def active(self) -> bool:
        """Whether the port's state is ACTIVE."""
        return self.state == "ACTIVE"

    @property
    def usable_gids(self) -> tuple[Gid, ...]:
        """Entries that a RoCE v2 connection may use: not empty, not link-local."""
        return tuple(
            gid for gid in self.gids
            if not gid.error and not gid.empty and gid.kind == ROCE_V2 and not gid.link_local
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.device}/{self.number}"


@dataclass(frozen=True, slots=True)
class UverbsNode:
    """A character device through which a process reaches a verbs device.

    Attributes:
        name: ``uverbs0``.
        device: the verbs device.
        problem: why it cannot be opened for reading and writing; empty when it can.
        code: the errno value of that, 0 without one.
    """

    name: str
    device: str
    problem: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class VerbsDevice:
    """A verbs device. ``driver`` is its kernel driver, ``pci`` its function; empty: none."""

    name: str
    driver: str = ""
    pci: str = ""
    firmware: str = ""
    ports: tuple[VerbsPort, ...] = ()


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network interface of this namespace.

    Attributes:
        mtu: bytes; 0 when unknown.
        state: ``operstate`` of sysfs.
        driver: kernel driver of its device; empty for a virtual one.
        pci: PCI function; empty: none.
        master: the bond that it belongs to; empty: none.
        sysctls: ``arp_ignore``, ``arp_announce``, ``rp_filter`` as in force (the larger of the
            interface's and ``all``).
    """

    name: str
    mtu: int = 0
    state: str = ""
    driver: str = ""
    pci: str = ""
    master: str = ""
    sysctls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address of an interface, with the subnet's prefix."""

    netdev: str
    interface: IPv4Interface | IPv6Interface


@dataclass(frozen=True, slots=True)
class PciBridge:
    """A PCIe bridge above a NIC. ``acs_control``: the ACS control register; None: it has no ACS."""

    address: str
    above: tuple[str, ...]
    acs_control: int | None


@dataclass(frozen=True, slots=True)
class MemlockLimit:
    """How much memory somebody may pin.

    Attributes:
        whose: ``this shell``, ``process 4711 (python)``, ``unit slurmd.service``.
        limit: soft limit in bytes; None: unlimited.
        exempt: the process has CAP_IPC_LOCK of the initial user namespace: no limit holds.
        job: whether it is a training job's process.
    """

    whose: str
    limit: int | None
    exempt: bool = False
    job: bool = False


@dataclass(frozen=True, slots=True)
class Qos:
    """Traffic classes of an interface.

    Attributes:
        pfc: for each of the 8 priorities, whether PFC is on.
        trust: ``dscp`` or ``pcp``; empty when unknown.
        priority_of_dscp: DSCP → priority; DSCPs that are not in it have priority 0.
        source: the tool that reported it.
    """

    netdev: str
    pfc: tuple[bool, ...]
    trust: str = ""
    priority_of_dscp: Mapping[int, int] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """What lets a NIC reach GPU memory.

    Attributes:
        gpus: PCI functions of GPUs, with their vendors.
        modules: peer-memory clients that are loaded, as sysfs paths.
        open_nvidia: whether NVIDIA's open kernel modules run; None without an NVIDIA driver.
        kernel: its release, major and minor; (0, 0) when unknown.
    """

    gpus: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    open_nvidia: bool | None = None
    kernel: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class PluginLibrary:
    """The plugin's library as a child process loaded it.

    Attributes:
        path: where it lies; empty: it was not found.
        problem: why it cannot be used; empty: it can.
        release: ``0.1.0``, by its build mark; empty: it has none.
        wire_min, wire_max: versions of the wire format that it speaks; 0: unknown.
        tables: versions of NCCL's table that it exports.
        sha256: of the file, hexadecimal.
        glibc: the newest glibc that it asks for, as ``2.17``; empty: unknown.
        transports: what it can carry traffic over: ``tcp``, ``verbs``.
    """

    path: str = ""
    problem: str = ""
    release: str = ""
    wire_min: int = 0
    wire_max: int = 0
    tables: tuple[int, ...] = ()
    sha256: str = ""
    glibc: str = ""
    transports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NcclEnvironment:
    """NCCL's and fabricd's variables of one process.

    Attributes:
        source: ``this environment`` or ``process 4711``.
        variables: of the environment.
        file: of NCCL's configuration file, which the environment overrides.
        file_name: where that lies.
        library_found: whether the library that ``NCCL_NET_PLUGIN`` names is where a loader looks;
            None when that is unknown.
    """

    source: str
    variables: Mapping[str, str]
    file: Mapping[str, str] = field(default_factory=dict)
    file_name: str = ""
    library_found: bool | None = None

    def value(self, name: str) -> str | None:
        """What NCCL sees: the environment first, then the file."""
        return self.variables.get(name, self.file.get(name))

    def values(self) -> dict[str, str]:
        """All that NCCL sees."""
        return dict(self.file) | dict(self.variables)


@dataclass(frozen=True, slots=True)
class Firewall:
    """Rules that can stop RoCE v2 (UDP port 4791).

    Attributes:
        blocking: rules that drop or reject such packets, as text.
        default_drop: base chains of input whose policy is drop and that accept no such packet.
    """

    blocking: tuple[str, ...] = ()
    default_drop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything that was gathered.

    Attributes:
        host: ``[host] name`` of the daemon's configuration; without one the system's name.
        rails: the interfaces that carry a job's traffic.
        configured: whether an operator named them; else they are those with a verbs port.
        rails_by: what names them.
        addresses: None: they could not be had.
        source_rules: sources that have a routing rule of their own.
        modules: kernel modules.
        libibverbs: the library's name; empty: there is none.
        firewall: None: its rules could not be listed.
        unexamined: what could not be looked at → why.
    """

    verbs: tuple[VerbsDevice, ...] = ()
    nodes: tuple[UverbsNode, ...] = ()
    netdevs: Mapping[str, Netdev] = field(default_factory=dict)
    addresses: tuple[Address, ...] | None = ()
    source_rules: frozenset[str] = frozenset()
    host: str = ""
    rails: tuple[str, ...] = ()
    configured: bool = False
    rails_by: str = ""
    modules: frozenset[str] = frozenset()
    bridges: tuple[PciBridge, ...] = ()
    memlock: tuple[MemlockLimit, ...] = ()
    qos: tuple[Qos, ...] = ()
    peer_memory: PeerMemory = field(default_factory=PeerMemory)
    plugin: PluginLibrary = field(default_factory=PluginLibrary)
    libibverbs: str = ""
    nccl: tuple[NcclEnvironment, ...] = ()
    firewall: Firewall | None = None
    unexamined: Mapping[str, str] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[VerbsPort, ...]:
        """Ports of all verbs devices."""
        return tuple(port for device in self.verbs for port in device.ports)

    def document(self) -> dict[str, Any]:
        """The facts that others compare: ports with their tables, rails, the plugin; as JSON."""
        drivers = {device.name: device.driver for device in self.verbs}
        return {
            "ports": [
                asdict(port) | {"name": str(port), "driver": drivers[port.device]}
                for port in self.ports
            ],
            "rails": list(self.rails),
            "rails_by": self.rails_by,
            "libibverbs": self.libibverbs,
            "plugin": asdict(self.plugin),
        }

    def concerns(self, port: VerbsPort) -> bool:
        """Whether a job here may use a port.

        Sysfs shows a host's ports in all of its containers, and ports for storage or management.
        Where an operator named the rails, they tell; else what this process can open.
        """
        if self.configured:
            return not port.netdevs or bool(set(port.netdevs) & set(self.rails))
        return any(node.device == port.device and not node.problem for node in self.nodes)
