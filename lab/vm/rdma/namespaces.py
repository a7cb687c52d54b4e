"""One machine with a newer kernel: hosts are network namespaces, leaves are bridges.

The machine's own namespace is the fabric: bridge ``leaf<r>`` has a port ``leaf<r>h<i>`` for each
host, and ``mgmt`` joins the hosts' ``mgmt0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab.faults.base import Direction
from lab.topology import MANAGEMENT, Topology
from lab.vm import kernel, machine
from lab.vm.machine import Vm
from lab.vm.rdma.lab import ETHERNET_MTU, MASKED, GuestLab, Hook, device, kernel_script
from lab.vm.rdma.place import Place, here_document
from lab.vm.rdma.registry import Kind

MEMORY_MIB = 1024
CPUS = 2
_BRIDGE = "mgmt"
# As lab.network.build has it: a rail answers only for its own addresses.
_SYSCTLS = (
    "net.ipv4.conf.all.arp_ignore=1",
    "net.ipv4.conf.all.arp_announce=2",
    "net.ipv6.conf.all.accept_dad=0",
    "net.ipv6.conf.default.accept_dad=0",
)


def leaf_port(host: int, rail: int) -> str:
    """The bridge port that a host's rail is plugged into."""
    return f"leaf{rail}h{host}"


def network_script(topology: Topology, mtu: int) -> list[str]:
    """Shell lines that make namespaces, bridges, wires and addresses. Pure.

    ``mtu`` is that of the rails, in bytes.
    """
    hosts, rails = range(topology.hosts), range(topology.rails)
    fabric = [f"netns add h{host}" for host in hosts]
    for name in (_BRIDGE, *(f"leaf{rail}" for rail in rails)):
        fabric += [f"link add {name} type bridge", f"link set {name} up"]
    # Both ends of a veth pair must differ in their index (docs/design/lab.md).
    index = 100
    for host in hosts:
        wires = [(f"mgmth{host}", MANAGEMENT, _BRIDGE, ETHERNET_MTU)]
        wires += [(leaf_port(host, rail), f"rail{rail}", f"leaf{rail}", mtu) for rail in rails]
        for port, inside, bridge, size in wires:
            index += 1
            peer = f"peer name {inside} mtu {size} netns h{host}"
            fabric.append(f"link add {port} index {index} mtu {size} type veth {peer}")
            fabric.append(f"link set {port} master {bridge} up")
    lines = [here_document("ip -batch -", fabric)]
    for host in hosts:
        names = ["lo", MANAGEMENT, *(f"rail{rail}" for rail in rails)]
        batch = [f"link set {name} up" for name in names]
        for address in topology.addresses("host", host):
            nodad = " nodad" if address.family == 6 else ""
            batch.append(f"addr add {address.ip}/{address.prefix} dev {address.ifname}{nodad}")
        sysctl = f"ip netns exec h{host} sysctl -qw {' '.join(_SYSCTLS)}"
        lines += [sysctl, here_document(f"ip -n h{host} -batch -", batch)]
    return lines


def rxe_script(pairs: list[tuple[int, int]]) -> list[str]:
    """Shell lines that give the rails ``pairs`` of (host, rail) their devices. Pure.

    A device appears in the machine's own namespace, whatever namespace asks for it, and under a
    name that must be free there; then it is moved and gets its name.
    """
    hosts = sorted({host for host, _ in pairs})
    lines = []
    for host in hosts:
        adds = [f"link add h{h}r{r} type rxe netdev rail{r}" for h, r in pairs if h == host]
        lines.append(here_document(f"ip netns exec h{host} rdma -b -", adds))
    moves = [f"dev set h{h}r{r} netns h{h}" for h, r in pairs]
    lines.append(here_document("rdma -b -", moves))
    for host in hosts:
        names = [f"dev set h{h}r{r} name {device(r)}" for h, r in pairs if h == host]
        lines.append(here_document(f"ip netns exec h{host} rdma -b -", names))
    return lines


class NamespaceLab(GuestLab):
    """A booted lab in one machine; made by `booted`."""

    kind: Kind = "namespaces"

    def __init__(self, topology: Topology, vm: Vm, mtu: int = ETHERNET_MTU) -> None:
        super().__init__(topology, mtu)
        self.vm = vm
        self.fabric = Place(vm)

    @property
    def machines(self) -> list[Vm]:
        """The one machine."""
        return [self.vm]

    def place(self, host: int) -> Place:
        """Its namespace."""
        return Place(self.vm, f"h{host}")

    def build(self) -> None:
        """Make the network and the devices; raises ``VmError`` when the kernel refuses."""
        # Devices are to belong to one namespace; the mode cannot change once there are others.
        mode = ["modprobe ib_core", "rdma system set netns exclusive"]
        pairs = [(h, r) for h in range(self.topology.hosts) for r in range(self.topology.rails)]
        lines = [
            *mode,
            *kernel_script(),
            *network_script(self.topology, self.mtu),
            *rxe_script(pairs),
        ]
        self.fabric.script(lines, timeout=600)

    def set_cable(self, host: int, rail: int, *, up: bool) -> None:
        """The leaf's port."""
        state = "up" if up else "down"
        self.fabric.run(["ip", "link", "set", leaf_port(host, rail), state]).check()

    def drop_points(self, host: int, rail: int, way: Direction) -> list[tuple[Place, str, Hook]]:
        """The leaf's port: what the host sends comes in there."""
        hooks: dict[Direction, list[Hook]] = {
            "tx": ["ingress"],
            "rx": ["egress"],
            "both": ["ingress", "egress"],
        }
        return [(self.fabric, leaf_port(host, rail), hook) for hook in hooks[way]]

    def shape_points(self, host: int, rail: int, way: Direction) -> list[tuple[Place, str]]:
        """The host's own queue for what it sends, the leaf's port for what it receives."""
        sent, received = (self.place(host), f"rail{rail}"), (self.fabric, leaf_port(host, rail))
        return {"tx": [sent], "rx": [received], "both": [sent, received]}[way]

    def _add_rxe(self, host: int, rail: int) -> None:
        self.fabric.script(rxe_script([(host, rail)]))

    def signal_processes(self, host: int, name: str) -> None:
        """All in its namespace."""
        signal = f"ip netns pids h{host} | xargs -r kill -{name} 2>/dev/null || true"
        self.fabric.script([signal])

    def prepare(self, host: int) -> None:
        """Nothing: hosts do not boot by themselves here."""


@contextmanager
def booted(
    name: str = "rdma", hosts: int = 4, rails: int = 2, mtu: int = ETHERNET_MTU
) -> Iterator[NamespaceLab]:
    """Boot and build; the machine ends on exit, whatever happens. ``mtu`` is that of the rails.

    Raises:
        LabError: there is a lab of that name.
        TopologyError: no lab has such sizes.
    """
    topology = Topology(name, hosts=hosts, rails=rails, spines=0, rate_bps=0, management=True)
    machine.clean_stale()
    with ExitStack() as stack:
        vm = Vm(f"rdma-{name}", kernel.newer(), memory_mib=MEMORY_MIB, cpus=CPUS, masked=MASKED)
        lab = NamespaceLab(topology, vm, mtu)
        lab.open()
        stack.callback(lab.close)
        stack.enter_context(vm)
        vm.wait_booted()
        lab.build()
        yield lab
