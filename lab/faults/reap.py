"""Clears away what faults of processes that were killed have left."""

from __future__ import annotations

import signal
from collections.abc import Callable

from lab.faults.base import Site
from lab.faults.holds import HoldTable
from lab.lifecycle import procs
from lab.network import build
from lab.network.rtlink import LinkSetter
from lab.topology import (
    Port,
)


def reap(site: Site) -> None:
    """End what faults of processes that are gone have left: held ports, freezes, addresses.

    Packet drops need no reaping: the kernel removes their tables with the process.
    """
    topology = site.topology
    rows: dict[int, Callable[[], None]] = {}

    def up(port: Port) -> Callable[[], None]:
        def bring_up() -> None:
            with LinkSetter(port.ns, [port.ifname]) as setter:
                setter.set(port.ifname, up=True)

        return bring_up

    def thaw(host: int) -> Callable[[], None]:
        def wake() -> None:
            for who in procs.inhabitants([topology.ns("host", host)]):
                who.signal(signal.SIGCONT)

        return wake

    def readdress(host: int, rail: int) -> Callable[[], None]:
        return lambda: build.set_addresses(topology, host, f"rail{rail}", present=True)

    for wire in topology.wires():
        for port in (wire.a, wire.b):
            rows[port.number] = up(port)
    for host in range(topology.hosts):
        rows[site.freeze_row(host)] = thaw(host)
        rows[site.kill_row(host)] = lambda: None
        for rail in range(topology.rails):
            rows[site.address_row(host, rail)] = readdress(host, rail)
    table = HoldTable(site.dir.holds)
    changed = False
    try:
        with table.locked():
            for row, act in rows.items():
                if table.reap(row):
                    act()
                    changed = True
    finally:
        table.close()
    if changed:
        for role, index, _ in topology.namespaces():
            build.restore_routes(topology, role, index)
