"""Two machines with Debian's own kernel: each host is a machine of its own.

That kernel has no soft-RoCE in namespaces. Here a host can be paused, killed and rebooted, and a
cable's carrier is QEMU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab.faults.base import Direction
from lab.topology import MANAGEMENT, Topology
from lab.vm import pair
from lab.vm.machine import Vm
from lab.vm.rdma.lab import ETHERNET_MTU, MASKED, GuestLab, Hook, device, kernel_script
from lab.vm.rdma.place import Place
from lab.vm.rdma.registry import Kind

CPUS = 2


def host_script(topology: Topology, host: int, mtu: int) -> list[str]:
    """Shell lines that make a machine, just booted, the lab's host ``host``. Pure.

    ``mtu`` is that of the rails, in bytes.
    """
    rails = range(topology.rails)
    # The cable after the last rail's is the management network.
    lines = [f"ip link set rail{topology.rails} name {MANAGEMENT}"]
    lines.append("sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
    lines.append(f"ip link set {MANAGEMENT} up")
    lines += [f"ip link set rail{rail} mtu {mtu} up" for rail in rails]
    for address in topology.addresses("host", host):
        nodad = " nodad" if address.family == 6 else ""
        lines.append(f"ip addr add {address.ip}/{address.prefix} dev {address.ifname}{nodad}")
    lines += kernel_script()
    return lines + [rxe_line(rail) for rail in rails]


def rxe_line(rail: int) -> str:
    """Shell line that gives a rail its device. Pure."""
    return f"rdma link add {device(rail)} type rxe netdev rail{rail}"


class PairLab(GuestLab):
    """A booted lab of two machines; made by `booted`."""

    kind: Kind = "pair"

    def __init__(self, topology: Topology, machines: pair.Pair, mtu: int = ETHERNET_MTU) -> None:
        super().__init__(topology, mtu)
        self._vms = [machines.alpha, machines.beta]

    @property
    def machines(self) -> list[Vm]:
        """Both."""
        return self._vms

    def place(self, host: int) -> Place:
        """Its machine."""
        return Place(self._vms[host])

    def set_cable(self, host: int, rail: int, *, up: bool) -> None:
        """By QEMU's monitor; the other end keeps its carrier, as behind a switch."""
        self._vms[host].set_link(rail, up=up)

    def drop_points(self, host: int, rail: int, way: Direction) -> list[tuple[Place, str, Hook]]:
        """Where packets come in: what a host sends, at the other one."""
        sent: tuple[Place, str, Hook] = (self.place(1 - host), f"rail{rail}", "ingress")
        received: tuple[Place, str, Hook] = (self.place(host), f"rail{rail}", "ingress")
        return {"tx": [sent], "rx": [received], "both": [sent, received]}[way]

    def shape_points(self, host: int, rail: int, way: Direction) -> list[tuple[Place, str]]:
        """The sender's own queue."""
        sent, received = (self.place(host), f"rail{rail}"), (self.place(1 - host), f"rail{rail}")
        return {"tx": [sent], "rx": [received], "both": [sent, received]}[way]

    def _add_rxe(self, host: int, rail: int) -> None:
        self.place(host).script([rxe_line(rail)])

    def signal_processes(self, host: int, name: str) -> None:
        """All that the machine's agent has started; each leads a session of its own."""
        agent = "systemctl show -P MainPID fabric-vm-agent"
        each = f'[ "$p" = $$ ] || kill -{name} -- "-$p" 2>/dev/null || true'
        self.place(host).script([f"for p in $(pgrep -P $({agent})); do {each}; done"])

    def prepare(self, host: int) -> None:
        """Addresses, devices and payload of a machine that has just booted."""
        self.place(host).script(host_script(self.topology, host, self.mtu), timeout=600)
        self.repush(self._vms[host])


@contextmanager
def booted(name: str = "rdma", rails: int = 2, mtu: int = ETHERNET_MTU) -> Iterator[PairLab]:
    """Boot both and build; they end on exit, whatever happens. ``mtu`` is that of the rails.

    Raises:
        LabError: there is a lab of that name.
        TopologyError: no lab has such sizes.
    """
    topology = Topology(name, hosts=2, rails=rails, spines=0, rate_bps=0, management=True)
    with ExitStack() as stack:
        machines = stack.enter_context(
            pair.wired(rails + 1, prefix=f"rdma-{name}-", cpus=CPUS, masked=MASKED)
        )
        lab = PairLab(topology, machines, mtu)
        lab.open()
        stack.callback(lab.close)
        for host in range(2):
            lab.machines[host].wait_booted()
            lab.prepare(host)
        yield lab
