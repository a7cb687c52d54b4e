"""Two machines, ``alpha`` and ``beta``, joined rail by rail by cables of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.vm import image, machine
from lab.vm.machine import Nic, Vm

NAMES = ("alpha", "beta")


def address(host: int, rail: int) -> str:
    """IPv4 address of a host's rail, as in the namespace lab."""
    return f"10.{rail}.0.{host + 1}"


def cables(directory: Path, rails: int) -> tuple[list[Nic], list[Nic]]:
    """The NICs of both ends of ``rails`` cables whose sockets lie in ``directory``."""
    ends: tuple[list[Nic], list[Nic]] = ([], [])
    for rail in range(rails):
        paths = [directory / f"rail{rail}-{name}" for name in NAMES]
        for host in (0, 1):
            mac = f"52:54:00:fa:{host:02x}:{rail:02x}"
            ends[host].append(Nic(paths[host], paths[1 - host], mac))
    return ends


@dataclass(frozen=True, slots=True)
class Pair:
    """Two booted machines, rails up and addressed (``10.<rail>.0.<host + 1>/24``)."""

    alpha: Vm
    beta: Vm
    rails: int

    def set_cable(self, rail: int, *, up: bool) -> None:
        """Pull or plug a cable: both ends lose or gain carrier."""
        for vm in (self.alpha, self.beta):
            vm.set_link(rail, up=up)


def set_up(vm: Vm, host: int, rails: int) -> None:
    """Take the rails of a booted machine up, with the addresses of that host."""
    script = []
    for rail in range(rails):
        script += [
            f"ip link set rail{rail} up",
            f"ip addr add {address(host, rail)}/24 dev rail{rail}",
        ]
    # The host's name for a rail's address must not follow another rail's ARP.
    script.append("sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
    vm.run("sh", "-ec", "\n".join(script)).check()


@contextlib.contextmanager
def wired(
    rails: int,
    mounts: Mapping[str, Path] | None = None,
    *,
    prefix: str = "",
    cpus: int = 1,
    masked: Sequence[str] = (),
) -> Iterator[Pair]:
    """Start both machines, joined by ``rails`` cables, and yield them while they boot.

    Both end on exit, whatever happens. ``prefix`` is that of their names.
    """
    machine.clean_stale()
    base = image.base()
    directory = machine.RUN / f"{prefix}cables-{os.getpid()}"
    directory.mkdir(parents=True)
    ends = cables(directory, rails)
    try:
        with contextlib.ExitStack() as stack:
            vms = [
                stack.enter_context(
                    Vm(f"{prefix}{name}", base, nics, mounts, cpus=cpus, masked=masked)
                )
                for name, nics in zip(NAMES, ends, strict=True)
            ]
            yield Pair(vms[0], vms[1], rails)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def booted(rails: int = 2, mounts: Mapping[str, Path] | None = None) -> Iterator[Pair]:
    """As `wired`, but the machines have booted and their rails are up and addressed."""
    with wired(rails, mounts) as both:
        for host, vm in enumerate((both.alpha, both.beta)):
            vm.wait_booted()
            set_up(vm, host, rails)
        yield both
