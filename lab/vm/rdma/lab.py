"""``GuestLab``: what both kinds of RDMA lab offer to tests, benchmarks and the command line.

with namespaces.booted(hosts=4, rails=2) as lab:
    lab.push(build_dir())
    with lab.inject(RoceDrop("h1:rail0")):
        lab.perf("p2p", "--iters", "20").wait(120)
"""

from __future__ import annotations

import itertools
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from lab.faults.base import Direction
from lab.faults.truth import Row
from lab.lifecycle.registry import LabError
from lab.topology import Topology, TopologyError
from lab.vm.machine import Vm
from lab.vm.rdma import dmesg, payload, perftest, registry
from lab.vm.rdma.holds import Holds
from lab.vm.rdma.perf import Collective, GuestPerf
from lab.vm.rdma.place import Place, here_document
from lab.vm.rdma.registry import Kind
from lab.vm.rdma.site import GuestDir, GuestSite, TrackedFault
from lab.vm.rdma.writes import RcWrites
from lab.vm.wire import Job, Result

Injected = TypeVar("Injected", bound=TrackedFault)
Hook = Literal["ingress", "egress"]
PATIENCE_S = 240
"""For a program of the guest to get ready; under emulation all is 20 times slower."""
ETHERNET_MTU = 1500
"""Gives an active MTU of 1024; 4500 gives 4096."""
LEAST_MTU, MOST_MTU = 576, 9000
MODULES = ("rdma_rxe", "sch_netem", "nft_numgen", "nf_tables")
MASKED = tuple(f"rdma-load-modules@{kind}.service" for kind in ("rdma", "roce", "infiniband"))
"""They load modules that nothing here uses, for each device that appears."""


def kernel_script() -> list[str]:
    """Shell lines that load what a machine's kernel needs, and hold its hooks. Pure."""
    return [f"modprobe -a {' '.join(MODULES)}", held_hooks()]


def held_hooks() -> str:
    """A shell line after which no nftables table makes a machine patch its kernel's code. Pure.

    The first chain at a hook switches the hook on, and the last one off, by patching running code.
    QEMU's emulator does not always get that right: a virtual CPU traps in code that is whole again,
    and its kernel dies (``Oops: int3`` in ``__netif_receive_skb_core``). A chain that stays has the
    hooks stay on.
    """
    lines = ["table netdev held {"]
    for hook in ("ingress", "egress"):
        lines += [f"chain {hook} {{ type filter hook {hook} device lo priority 0; }}"]
    return here_document("nft -f -", [*lines, "}"])


def device(rail: int) -> str:
    """Name of a rail's soft-RoCE device on its host."""
    return f"rxe{rail}"


class GuestLab(ABC):
    """Hosts ``h0`` … with ``rail0`` … and ``mgmt0``; rail r has the device ``rxe<r>``.

    Addresses and targets of faults are those of `lab.topology.Topology`.
    """

    kind: Kind

    def __init__(self, topology: Topology, mtu: int) -> None:
        if not LEAST_MTU <= mtu <= MOST_MTU:
            raise TopologyError(f"mtu = {mtu}: {LEAST_MTU} to {MOST_MTU} bytes")
        self.topology, self.mtu = topology, mtu
        self.dir = GuestDir(topology.name)
        self.site = GuestSite(topology, self.dir, self)
        self.holds = Holds()
        self.rxe_lock = threading.Lock()
        """Held while soft-RoCE devices are added or removed: the kernel's code for two at once has
        a use-after-free (syzbot d8f76778)."""
        self._ports = itertools.count(18500)
        self._runs = itertools.count()
        self._active: list[TrackedFault] = []

    # Where things run

    @abstractmethod
    def place(self, host: int) -> Place:
        """Where processes of a host run."""

    @property
    @abstractmethod
    def machines(self) -> list[Vm]:
        """All virtual machines."""

    def host(self, host: int) -> Place:
        """As `place`; raises ``TopologyError`` when there is no such host."""
        if not 0 <= host < self.topology.hosts:
            raise TopologyError(f"no host {host}: h0 to h{self.topology.hosts - 1}")
        return self.place(host)

    def run(
        self,
        host: int,
        argv: Sequence[str],
        *,
        timeout: float = 300,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command on a host to its end; ``Result.check`` raises unless it succeeded."""
        return self.host(host).run(argv, timeout=timeout, stdin=stdin, env=env)

    def popen(
        self,
        host: int,
        argv: Sequence[str],
        *,
        timeout: float = 300,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Start a command on a host; the guest kills it after ``timeout`` seconds."""
        return self.host(host).begin(argv, timeout=timeout, stdin=stdin, env=env)

    def next_port(self) -> int:
        """A number that no other use in this lab has; as a TCP port it is free."""
        return next(self._ports)

    # The network, as faults see it

    @abstractmethod
    def set_cable(self, host: int, rail: int, *, up: bool) -> None:
        """Plug or unplug a rail: the host's NIC gains or loses carrier."""

    @abstractmethod
    def drop_points(self, host: int, rail: int, way: Direction) -> list[tuple[Place, str, Hook]]:
        """Devices and hooks outside of the host where its packets pass, ``way`` as it sees them."""

    @abstractmethod
    def shape_points(self, host: int, rail: int, way: Direction) -> list[tuple[Place, str]]:
        """Devices whose egress queue the packets pass."""

    def add_rxe(self, host: int, rail: int) -> None:
        """Add the soft-RoCE device of a rail."""
        with self.rxe_lock:
            self._add_rxe(host, rail)

    @abstractmethod
    def _add_rxe(self, host: int, rail: int) -> None: ...

    def remove_rxe(self, host: int, rail: int) -> None:
        """Delete the soft-RoCE device of a rail; queue pairs on it end in an error."""
        with self.rxe_lock:
            self.place(host).run(["rdma", "link", "delete", device(rail)]).check()

    @abstractmethod
    def signal_processes(self, host: int, name: str) -> None:
        """Send signal ``name`` (as kill(1) has it) to every process that was started on a host."""

    @abstractmethod
    def prepare(self, host: int) -> None:
        """Make a host that has just booted part of the lab."""

    # Payload and load

    def push(self, build: Path) -> None:
        """Put plugin and fabric-perf of a build directory into every machine.

        Twice is as good as once: what runs already keeps what it has.

        Raises:
            LabError: something is not built.
        """
        self._payload = build
        for vm in self.machines:
            payload.push(vm, build)

    def put(self, path: Path) -> str:
        """Put one more program into every machine; its path there. A reboot loses it."""
        for vm in self.machines:
            payload.put(vm, path)
        return f"{payload.ROOT}/{path.name}"

    _payload: Path | None = None

    def repush(self, vm: Vm) -> None:
        """Put the payload into a machine that has lost it."""
        if self._payload is not None:
            payload.push(vm, self._payload)

    def perf(
        self,
        collective: Collective,
        *args: str,
        hosts: Sequence[int] | None = None,
        env: Mapping[str, str] | None = None,
        plugin: str = payload.PLUGIN,
        timeout: float = 300,
    ) -> GuestPerf:
        """``fabric-perf`` with one rank per host; ``args`` are its further arguments.

        Args:
            collective: p2p, ring or alltoall.
            args: of fabric-perf.
            hosts: in the order of ranks; default all.
            env: beside ``NCCL_SOCKET_IFNAME=rail``.
            plugin: path in the guest.
            timeout: seconds, kept by the guest.
        """
        chosen = list(range(self.topology.hosts) if hosts is None else hosts)
        where = f"/run/fabric-perf/{next(self._runs)}"
        meet = f"tcp:{self.topology.management4(chosen[0])}:{self.next_port()}"
        places = [self.host(host) for host in chosen]
        return GuestPerf(places, collective, args, where, meet, env or {}, plugin, timeout)

    def write_bw(
        self, source: int, target: int, rail: int, size: int = 65536, count: int = 200
    ) -> perftest.Bandwidth:
        """``ib_write_bw`` of ``count`` messages of ``size`` bytes between two hosts.

        Raises:
            PerftestError: it failed.
        """
        return perftest.bandwidth(self._perftest("ib_write_bw", source, target, rail, size, count))

    def write_lat(
        self, source: int, target: int, rail: int, size: int = 8, count: int = 500
    ) -> perftest.Latency:
        """``ib_write_lat``, likewise."""
        return perftest.latency(self._perftest("ib_write_lat", source, target, rail, size, count))

    def _perftest(
        self, program: perftest.Program, source: int, target: int, rail: int, size: int, count: int
    ) -> str:
        port = self.next_port()

        def argv(server: str = "") -> list[str]:
            return perftest.arguments(
                program, rail=rail, size=size, count=count, port=port, server=server
            )

        server = self.popen(target, argv(), timeout=PATIENCE_S)
        try:
            self.wait_listening(target, port, server)
            done = self.run(source, argv(self.topology.management4(target)), timeout=PATIENCE_S)
        except BaseException:
            server.kill()
            raise
        # A server whose client has failed waits for ever.
        served = server.kill() if done.rc else server.wait()
        for result in (done, served):
            if result.rc != 0:
                text = f"{result.out[-1500:]}\n{result.err[-1500:]}"
                raise perftest.PerftestError(f"{program}: status {result.rc}\n{text}")
        return done.out

    def writes(
        self,
        source: int,
        target: int,
        rail: int,
        *,
        seconds: float = 5.0,
        size: int = 4096,
        timeout: int = 14,
        retries: int = 3,
    ) -> RcWrites:
        """Start RDMA writes over one reliable connection; arguments as of `RcWrites`."""
        return RcWrites(
            self, source, target, rail,
            seconds=seconds, size=size, timeout=timeout, retries=retries, port=self.next_port(),
        )  # fmt: skip

    def wait_listening(self, host: int, port: int, server: Job) -> None:
        """Until a TCP port of a host is listened on.

        Raises:
            LabError: the server ended before, or the guest waited `PATIENCE_S`.
        """
        wait = f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.05; done"
        waiting = self.popen(host, ["sh", "-c", wait], timeout=PATIENCE_S)
        while waiting.running:
            if not server.running:
                waiting.kill()
                raise LabError(f"the server on h{host} ended: {server.wait()}")
            threading.Event().wait(0.02)
        if waiting.wait().rc != 0:
            server.kill()
            raise LabError(f"nobody listens on port {port} of h{host}")

    # Faults

    @contextmanager
    def inject(self, fault: Injected) -> Iterator[Injected]:
        """The fault is in force inside the ``with`` block."""
        self.arm(fault)
        try:
            fault.start()
            yield fault
        finally:
            self.disarm(fault)

    def arm(self, fault: Injected) -> Injected:
        """Check the fault against this lab; ``start`` and ``end`` are the caller's."""
        fault.arm(self.site)
        self._active.append(fault)
        return fault

    def disarm(self, fault: TrackedFault) -> None:
        """End what was armed, and forget it."""
        fault.end()
        fault.close()
        self._active.remove(fault)

    @property
    def in_force(self) -> list[TrackedFault]:
        """Faults that have started and not ended."""
        return [fault for fault in self._active if fault.injected]

    def truth(self) -> list[Row]:
        """Ground truth so far; ``guest_ns`` is when the guest's clock said that it happened."""
        return self.site.truth.rows()

    def kernel_faults(self) -> list[str]:
        """New reports of kernel faults in all machines; what was read is not read again."""
        found = []
        for vm in self.machines:
            log = vm.run("dmesg", "--read-clear").check().out
            found += [f"{vm.name}: {line}" for line in dmesg.kernel_faults(log)]
        return found

    def set_paused(self, *, paused: bool) -> None:
        """Let all machines stand still while nobody uses the lab, which then costs no CPU."""
        for vm in self.machines:
            vm.set_paused(paused=paused)

    # Up and down

    def open(self) -> None:
        """Make the lab's directory, owned by this process.

        Raises:
            LabError: another process has a lab of that name.
        """
        registry.claim(self.dir, self.kind, self.topology)

    def close(self) -> None:
        """Remove the lab's directory; the machines are closed by whoever booted them."""
        shutil.rmtree(self.dir.root, ignore_errors=True)
