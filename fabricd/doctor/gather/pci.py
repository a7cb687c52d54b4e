"""PCIe bridges above the NICs, and their Access Control Services (ACS), from configuration space.

PCI Express Base Specification 7.7.11: the ACS extended capability has the identifier 0x000D; its
control register lies 6 bytes into it. Without CAP_SYS_ADMIN the kernel gives 64 bytes alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from fabricd.doctor.facts import Netdev, PciBridge, VerbsDevice
from fabricd.doctor.tree import Tree, why

_DEVICES = "sys/bus/pci/devices"
_EXTENDED = 0x100
_SPACE = 4096
_ACS = 0x000D
_BRIDGE_CLASS = "0x0604"
_MAX_DEPTH = 32


class ConfigSpaceError(ValueError):
    """The configuration space was cut short, or its list of capabilities is damaged."""


def acs_control(space: bytes) -> int | None:
    """The ACS control register in a function's configuration space; None: it has no ACS.

    Raises:
        ConfigSpaceError: the extended part is missing or damaged.
    """
    if len(space) < _EXTENDED + 4:
        raise ConfigSpaceError(f"{len(space)} bytes of configuration space, not {_SPACE}")
    at = _EXTENDED
    seen: set[int] = set()
    while at:
        if at in seen or at < _EXTENDED or at + 8 > len(space):
            raise ConfigSpaceError(f"the list of capabilities is damaged at {at:#x}")
        seen.add(at)
        (header,) = struct.unpack_from("<I", space, at)
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", space, at + 6)[0])
        at = header >> 20 & 0xFFC
    return None


def bridges(
    tree: Tree, devices: Sequence[VerbsDevice], netdevs: Sequence[Netdev]
) -> tuple[PciBridge, ...]:
    """The bridges above verbs devices and rails, each once, in order of address."""
    functions = {device.pci for device in devices} | {netdev.pci for netdev in netdevs}
    above: dict[str, set[str]] = {}
    for function in sorted(functions - {""}):
        for bridge in _path(tree, function):
            above.setdefault(bridge, set()).add(function)
    found = []
    for bridge, functions_below in sorted(above.items()):
        try:
            control = acs_control(tree.data(f"{_DEVICES}/{bridge}/config", _SPACE))
        except (OSError, ConfigSpaceError) as error:
            text = why(error) if isinstance(error, OSError) else str(error)
            tree.note_unexamined(f"ACS of bridge {bridge}", f"{text} (root may read it)")
            continue
        found.append(PciBridge(bridge, tuple(sorted(functions_below)), control))
    return tuple(found)


def _path(tree: Tree, function: str) -> list[str]:
    """Bridges from a function up to the root port, as sysfs nests them."""
    try:
        place = tree.path(f"{_DEVICES}/{function}").resolve(strict=True)
    except (OSError, RuntimeError):
        return []
    parents = list(place.parents)[:_MAX_DEPTH]
    return [x.name for x in parents if x.name.count(":") == 2 and _is_bridge(x)]


def _is_bridge(place: Path) -> bool:
    try:
        return Tree().data(place / "class", len(_BRIDGE_CLASS)) == _BRIDGE_CLASS.encode()
    except OSError:
        return False
