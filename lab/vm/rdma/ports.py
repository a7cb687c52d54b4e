"""What the RDMA ports of a guest lab say: states, GIDs, active MTU, async events."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING

from lab.vm.wire import VmError

if TYPE_CHECKING:
    from lab.vm.rdma.lab import GuestLab

EVENTS = {9: "port_active", 10: "port_err", 18: "gid_change"}
"""Of ports (enum ibv_event_type)."""
_EVENT = re.compile(r"event_type .*\((\d+)\)")
_ACTIVE_MTU = re.compile(r"active_mtu:\s+(\d+)")


def states(lab: GuestLab, host: int) -> dict[str, str]:
    """``ACTIVE``, ``DOWN`` … by the host's devices."""
    shown = lab.run(host, ["rdma", "-j", "link"]).check().out
    return {link["ifname"]: link["state"] for link in json.loads(shown or "[]")}


def gids(lab: GuestLab, host: int, rail: int, indices: int = 8) -> list[str]:
    """The first entries of a device's GID table: an IPv6 or a mapped IPv4 address, '' if empty."""
    table = f"/sys/class/infiniband/rxe{rail}/ports/1/gids"
    read = f"for i in $(seq 0 {indices - 1}); do cat {table}/$i 2>/dev/null || echo ::; done"
    return [gid_text(line) for line in lab.run(host, ["sh", "-c", read]).check().out.split()]


def gid_text(raw: str) -> str:
    """One entry of the table as an address; '' for the empty one. Pure."""
    address = ipaddress.IPv6Address(raw)
    if not int(address):
        return ""
    return str(address.ipv4_mapped or address)


def active_mtu(lab: GuestLab, host: int, rail: int) -> int:
    """Bytes of payload of a packet, as the port has it now.

    Raises:
        VmError: there is no such device.
    """
    shown = lab.run(host, ["ibv_devinfo", "-d", f"rxe{rail}"]).check().out
    found = _ACTIVE_MTU.search(shown)
    if found is None:
        raise VmError(f"ibv_devinfo shows no active MTU: {shown}")
    return int(found[1])


class PortEvents:
    """Async events of one device, collected until ``close``."""

    def __init__(self, lab: GuestLab, host: int, rail: int, timeout: float = 600) -> None:
        self._place = lab.host(host)
        self._path = f"/run/fabric-vm/events-{lab.next_port()}"
        watch = f"mkdir -p /run/fabric-vm; exec ibv_asyncwatch -d rxe{rail} >{self._path} 2>&1"
        self._job = self._place.begin(["sh", "-c", watch], timeout=timeout)
        ready = f"until grep -q FD {self._path} 2>/dev/null; do sleep 0.05; done"
        self._place.run(["sh", "-c", ready], timeout=120).check()

    def kinds(self) -> list[str]:
        """Those of `EVENTS` so far, oldest first."""
        text = self._place.run(["cat", self._path]).check().out
        numbers = [int(number) for number in _EVENT.findall(text)]
        return [EVENTS[number] for number in numbers if number in EVENTS]

    def port_states(self) -> list[str]:
        """As `kinds`, without changes of GIDs."""
        return [kind for kind in self.kinds() if kind != "gid_change"]

    def close(self) -> None:
        """End the watcher."""
        self._job.kill()
