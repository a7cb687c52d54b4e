"""Verbs devices, ports, GID tables and device nodes, from sysfs-class-infiniband."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fabricd.doctor.facts import EMPTY_GID, Gid, UverbsNode, VerbsDevice, VerbsPort
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree, why

CLASS = "sys/class/infiniband"
QUERY = "fabricd.doctor.verbs_query"
MAX_GIDS = 4096
_GLOBAL_CLASS = re.compile(r"Global tclass=([0-9]{1,3})\b")


@dataclass(frozen=True, slots=True)
class VerbsQuery:
    """What libibverbs says. ``ports``: device → port number → MTUs in bytes."""

    library: str = ""
    ports: Mapping[str, Any] = field(default_factory=dict)


def query(tree: Tree, machine: Machine) -> VerbsQuery:
    """Ask libibverbs in a child process, where there is a verbs device to ask about."""
    try:
        answer = machine.child(QUERY)
    except ToolError as error:
        tree.note_unexamined("libibverbs", str(error))
        return VerbsQuery()
    if tree.names(CLASS) and (text := answer.get("error")):
        tree.note_unexamined("active MTU of verbs ports", str(text))
    ports = answer.get("devices")
    return VerbsQuery(str(answer.get("library", "")), ports if isinstance(ports, dict) else {})


def devices(tree: Tree, answer: VerbsQuery) -> tuple[VerbsDevice, ...]:
    """All verbs devices that sysfs shows.

    In a container with a namespace of its own sysfs shows devices that verbs do not give: the
    device nodes tell these apart.
    """
    return tuple(_device(tree, name, answer.ports.get(name)) for name in tree.names(CLASS))


def nodes(tree: Tree, machine: Machine, found: tuple[VerbsDevice, ...]) -> tuple[UverbsNode, ...]:
    """The device node of each verbs device, and whether this process may open it."""
    known = {device.name for device in found}
    out = []
    for name in tree.names("sys/class/infiniband_verbs"):
        device = tree.text(f"sys/class/infiniband_verbs/{name}/ibdev")
        if device is None or device not in known:
            continue  # abi_version, or a device that has just gone
        problem, code = _node_problem(tree, machine, name)
        out.append(UverbsNode(name, device, problem, code))
    return tuple(out)


def _device(tree: Tree, name: str, asked: Any) -> VerbsDevice:  # noqa: ANN401 - JSON
    base = f"{CLASS}/{name}"
    mtus = asked if isinstance(asked, dict) else {}
    ports = [number for number in tree.names(f"{base}/ports") if number.isdecimal()]
    return VerbsDevice(
        name,
        driver=tree.link_name(f"{base}/device/driver") or _soft_driver(tree, base),
        pci=_pci(tree.link_name(f"{base}/device")),
        firmware=tree.text(f"{base}/fw_ver") or "",
        ports=tuple(_port(tree, name, int(number), mtus.get(number)) for number in ports),
    )


def _soft_driver(tree: Tree, base: str) -> str:
    """Soft-RoCE and siw have no PCI device; ``parent`` of rxe names its interface."""
    if tree.exists(f"{base}/device"):
        return ""
    return "rdma_rxe" if tree.exists(f"{base}/parent") else "software"


def _pci(name: str) -> str:
    return name if name.count(":") == 2 else ""


def _port(tree: Tree, device: str, number: int, asked: Any) -> VerbsPort:  # noqa: ANN401 - JSON
    base = f"{CLASS}/{device}/ports/{number}"
    gids = _gids(tree, base)
    netdevs = {gid.netdev for gid in gids if gid.netdev}
    if not netdevs:
        netdevs = _own_netdevs(tree, device, number)
    mtus = asked if isinstance(asked, dict) else {}
    return VerbsPort(
        device,
        number,
        link_layer=tree.text(f"{base}/link_layer") or "",
        state=(tree.text(f"{base}/state") or "").partition(":")[2].strip(),
        rate=tree.text(f"{base}/rate") or "",
        gids=gids,
        netdevs=tuple(sorted(netdevs)),
        active_mtu=_mtu(mtus.get("active_mtu")),
        max_mtu=_mtu(mtus.get("max_mtu")),
        traffic_class=_traffic_class(tree.text(f"{CLASS}/{device}/tc/{number}/traffic_class")),
    )


def _mtu(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return value if isinstance(value, int) and 0 < value <= 65536 else None


def _traffic_class(text: str | None) -> int | None:
    """``Global tclass=106``, of mlx5 in MLNX_OFED; rules for single flows are passed over."""
    match = _GLOBAL_CLASS.search(text or "")
    return int(match[1]) if match else None


def _own_netdevs(tree: Tree, device: str, number: int) -> set[str]:
    """Interfaces of the device's own function: of IPoIB, or of a port without GIDs."""
    if parent := tree.text(f"{CLASS}/{device}/parent"):
        return {parent}
    names = tree.names(f"{CLASS}/{device}/device/net")
    if len(names) == 1:
        return set(names)
    return {
        name for name in names
        if (tree.number(f"sys/class/net/{name}/dev_port") or 0) + 1 == number
    }  # fmt: skip


def _gids(tree: Tree, base: str) -> tuple[Gid, ...]:
    found = []
    indices = sorted(int(name) for name in tree.names(f"{base}/gids") if name.isdecimal())
    for index in indices[:MAX_GIDS]:
        try:
            value = tree.read(f"{base}/gids/{index}")
        except OSError as error:
            found.append(Gid(index, "", error=why(error)))
            continue
        if value == EMPTY_GID:
            continue
        kind = netdev = ""
        # The kernel answers EINVAL for an entry that has just been emptied.
        with contextlib.suppress(OSError):
            kind = tree.read(f"{base}/gid_attrs/types/{index}")
        with contextlib.suppress(OSError):
            netdev = tree.read(f"{base}/gid_attrs/ndevs/{index}")
        found.append(Gid(index, value, kind, netdev))
    return tuple(found)


def _node_problem(tree: Tree, machine: Machine, name: str) -> tuple[str, int]:
    path = tree.path(f"dev/infiniband/{name}")
    try:
        status = path.stat()
    except OSError as error:
        return f"{path}: {why(error)}", error.errno or errno.EIO
    if not stat.S_ISCHR(status.st_mode):
        return f"{path} is no character device", errno.ENODEV
    wanted = tree.text(f"sys/class/infiniband_verbs/{name}/dev")
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if wanted is not None and number != wanted:
        return f"{path} has the numbers {number}, sysfs says {wanted}", errno.ENODEV
    code = machine.open_node(path)
    return (f"{path}: {os.strerror(code)}" if code else ""), code
