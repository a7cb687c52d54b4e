"""Interfaces, addresses, rails and kernel modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from fabricd.config.loader import ConfigError, load
from fabricd.doctor.facts import Address, Netdev, VerbsDevice
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree

SYSCTLS = ("arp_ignore", "arp_announce", "rp_filter")
_NET = "sys/class/net"
_CONF = "proc/sys/net/ipv4/conf"


def netdevs(tree: Tree) -> dict[str, Netdev]:
    """The interfaces of this network namespace.

    /sys may be mounted for another namespace; /proc/self/net never is, so it says which count.
    """
    here = _own_names(tree)
    names = [name for name in tree.names(_NET) if tree.exists(f"{_NET}/{name}/mtu")]
    return {name: _netdev(tree, name) for name in names if here is None or name in here}


def rails(
    tree: Tree, config: Path, found: Mapping[str, Netdev], devices: tuple[VerbsDevice, ...]
) -> tuple[tuple[str, ...], bool, str, str]:
    """The interfaces that carry a job's traffic; whether an operator named them; what says so.

    The daemon's configuration names them, and the host, which comes last (else ""). Without one,
    interfaces with a verbs port are taken.
    """
    try:
        read = load(tree.path(config.absolute()), shared_peers=False)
        return tuple(link.netdev for link in read.links), True, str(config), read.host.name
    except ConfigError as error:
        tree.note_unexamined("the daemon's configuration", str(error.problems[0]))
    names = {name for device in devices for port in device.ports for name in port.netdevs}
    # What is not in this namespace is no rail of it.
    return tuple(sorted(names & found.keys())), False, "verbs ports", ""


def addresses(tree: Tree, machine: Machine) -> tuple[Address, ...] | None:
    """All IP addresses of this namespace; None when they cannot be had."""
    try:
        listed = _json(machine, ["ip", "-j", "address", "show"])
    except ToolError as error:
        tree.note_unexamined("IP addresses", str(error))
        return None
    found = []
    for link in listed:
        for info in link.get("addr_info", []):
            try:
                text = f"{info['local']}/{info['prefixlen']}"
                found.append(Address(str(link["ifname"]), ip_interface(text)))
            except (KeyError, ValueError, TypeError):
                tree.note_unexamined("an IP address", f"ip printed {str(info)[:120]}")
    return tuple(found)


def source_rules(tree: Tree, machine: Machine) -> frozenset[str]:
    """Sources that have a routing rule of their own, as ``10.0.0.1`` or ``10.0.0.0/24``."""
    try:
        listed = _json(machine, ["ip", "-j", "rule", "show"])
    except ToolError as error:
        tree.note_unexamined("routing rules", str(error))
        return frozenset()
    found = set()
    for rule in listed:
        source = rule.get("src")
        if isinstance(source, str) and source not in ("all", ""):
            length = rule.get("srclen")
            found.add(f"{source}/{length}" if isinstance(length, int) else source)
    return frozenset(found)


def modules(tree: Tree) -> frozenset[str]:
    """Kernel modules that are loaded, and those that are built in and have a directory in sysfs."""
    loaded = {line.split(" ", 1)[0] for line in (tree.text("proc/modules") or "").splitlines()}
    return frozenset(loaded | set(tree.names("sys/module"))) - {""}


def _json(machine: Machine, argv: list[str]) -> list[dict[str, Any]]:
    text = machine.run(argv)
    try:
        listed = json.loads(text or "[]")
    except (ValueError, RecursionError):
        raise ToolError(f"{' '.join(argv)} printed no JSON") from None
    if not isinstance(listed, list):
        raise ToolError(f"{' '.join(argv)} printed no list")
    return [item for item in listed if isinstance(item, dict)]


def _own_names(tree: Tree) -> set[str] | None:
    text = tree.text("proc/self/net/dev")
    if text is None:
        return None
    return {line.partition(":")[0].strip() for line in text.splitlines() if ":" in line}


def _netdev(tree: Tree, name: str) -> Netdev:
    base = f"{_NET}/{name}"
    pci = tree.link_name(f"{base}/device")
    sysctls = {}
    for key in SYSCTLS:
        values = [tree.number(f"{_CONF}/{scope}/{key}") for scope in ("all", name)]
        if known := [value for value in values if value is not None]:
            sysctls[key] = max(known)  # as the kernel combines them: IN_DEV_MAXCONF
    return Netdev(
        name,
        mtu=tree.number(f"{base}/mtu") or 0,
        state=tree.text(f"{base}/operstate") or "",
        driver=tree.link_name(f"{base}/device/driver"),
        pci=pci if pci.count(":") == 2 else "",
        master=tree.link_name(f"{base}/master"),
        sysctls=sysctls,
    )
