"""State of InfiniBand and RoCE ports: through pyverbs where it is installed, else by sysfs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_ACTIVE = 4  # enum ibv_port_state, IBV_PORT_ACTIVE
_SYSFS = Path("/sys/class")
_PCI = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]")


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """One port of a verbs device; numbers count from 1."""

    device: str
    number: int

    def __str__(self) -> str:
        return f"{self.device}/{self.number}"


class Verbs(Protocol):
    """What is asked of pyverbs."""

    def devices(self) -> list[str]: ...  # noqa: D102

    def port_state(self, port: Port) -> int: ...  # noqa: D102


class PyVerbs:
    """pyverbs itself.

    Raises:
        ImportError, OSError: it is not installed.
    """

    def __init__(self) -> None:
        from pyverbs.device import Context, get_device_list

        self._context = Context
        self._list = get_device_list

    def devices(self) -> list[str]:
        """Names of all verbs devices; raises whatever pyverbs raises."""
        return [device.name.decode() for device in self._list()]

    def port_state(self, port: Port) -> int:
        """The port's state, enum ibv_port_state; raises whatever pyverbs raises."""
        with self._context(name=port.device) as context:
            return int(context.query_port(port.number).state)


class SysVerbs:
    """The same by ``state`` of sysfs-class-infiniband, which the kernel asks the driver for too."""

    def __init__(self, sysfs: Path = _SYSFS) -> None:
        """Args: ``sysfs``: its ``class`` folder."""
        self._class = sysfs / "infiniband"

    def devices(self) -> list[str]:
        """Names of all verbs devices."""
        return sorted(x.name for x in self._class.iterdir())

    def port_state(self, port: Port) -> int:
        """As of `PyVerbs`; the file says ``4: ACTIVE``.

        Raises:
            OSError, ValueError: there is no such port, or it says something else.
        """
        text = (self._class / port.device / "ports" / str(port.number) / "state").read_text("ascii")
        return int(text.partition(":")[0])


def ports_of(
    netdevs: Sequence[str], devices: Iterable[str], *, sysfs: Path = _SYSFS,
    named: Mapping[str, str] | None = None,
) -> dict[str, tuple[Port, ...]]:  # fmt: skip
    """The verbs ports behind network interfaces; those without one are left out.

    Args:
        netdevs: the interfaces.
        devices: all verbs devices.
        sysfs: its ``class`` folder.
        named: interface → verbs device, where the configuration says so.

    For Ethernet a port's GID table names its interfaces (sysfs-class-infiniband, ``ndevs``). For
    IPoIB it does not: there the interface names its device, and its ``dev_port`` (from 0) the port.

    A GID table names interfaces of all network namespaces, and those of two may have one name. So
    it does not count for an interface that is a PCI device in another slot than the verbs device.
    """
    found: dict[str, set[Port]] = {}
    known = sorted(devices)
    for device in known:
        for port in _ports(device, sysfs):
            for name in _gid_netdevs(port, sysfs):
                if name not in netdevs or not _in_other_slot(name, device, sysfs):
                    found.setdefault(name, set()).add(port)
    for netdev in netdevs:
        if own_device := (named or {}).get(netdev):
            ports = set(_ports(own_device, sysfs)) if own_device in known else set()
            # Of a device with several ports one is behind the interface, where the system says so.
            told = ports & (found.get(netdev) or _own_ports(netdev, known, sysfs))
            found[netdev] = told or ports
        elif netdev not in found:
            found[netdev] = _own_ports(netdev, known, sysfs)
    return {name: tuple(sorted(found[name])) for name in netdevs if found[name]}


def _own_ports(netdev: str, known: Collection[str], sysfs: Path) -> set[Port]:
    """The ports of the interface's own device, as the interface says."""
    own = (sysfs / "net" / netdev / "device" / "infiniband").glob("*")
    number = (_number(sysfs / "net" / netdev / "dev_port") or 0) + 1
    ports = [Port(x.name, number) for x in own if x.name in known]
    return {p for p in ports if p in _ports(p.device, sysfs)}


def _in_other_slot(netdev: str, device: str, sysfs: Path) -> bool:
    """Whether both are PCI devices, in different slots: ports may be of other functions of one."""
    slots = []
    for path in (sysfs / "net" / netdev / "device", sysfs / "infiniband" / device / "device"):
        try:
            match = _PCI.fullmatch(path.readlink().name)
        except OSError:
            return False
        if match is None:
            return False
        slots.append(match[1])
    return slots[0] != slots[1]


def any_active(states: Mapping[Port, int | None]) -> bool | None:
    """Whether one of the ports is ACTIVE; None when none is known to be and not all are known."""
    if _ACTIVE in states.values():
        return True
    return None if None in states.values() or not states else False


class IbPorts:
    """Which verbs ports stand behind which netdev, and whether one of them is active.

    Attributes:
        note: one line for the log: what was found, or why there is nothing.
    """

    def __init__(
        self, netdevs: Sequence[str], named: Mapping[str, str] | None = None, *,
        verbs: Verbs | None = None, sysfs: Path = _SYSFS,
    ) -> None:  # fmt: skip
        """Look once.

        Args:
            netdevs: the links' interfaces.
            named: as of `ports_of`.
            verbs: None for pyverbs, if installed.
            sysfs: its ``class`` folder.
        """
        self._ports: dict[str, tuple[Port, ...]] = {}
        self._verbs = verbs
        self._sysfs = sysfs
        self._made_for = (list(netdevs), dict(named or {}), self._names())
        # pyverbs takes 5 MB, a second libpython among it: not where there is nothing to ask.
        if verbs is None and not self._made_for[2]:
            self.note = "no verbs devices"
            return
        try:
            self._verbs = verbs or PyVerbs()
        except (ImportError, OSError):
            self._verbs = SysVerbs(sysfs)
        try:
            devices = self._verbs.devices()
        except Exception as error:
            self.note = f"no verbs devices: {type(error).__name__}"
            return
        try:
            self._ports = ports_of(netdevs, devices, sysfs=sysfs, named=named)
        except OSError as error:
            self.note = f"a verbs device went away meanwhile: {error.strerror}"
            return
        self.note = (
            ", ".join(
                f"{netdev}={'+'.join(map(str, ports))}"
                for netdev, ports in sorted(self._ports.items())
            )
            or "no verbs device behind the configured links"
        )

    def changed(self, netdevs: Sequence[str], named: Mapping[str, str] | None = None) -> bool:
        """Whether the links or the devices are others than when this was made."""
        return (list(netdevs), dict(named or {}), self._names()) != self._made_for

    @property
    def incomplete(self) -> bool:
        """Whether a link has no port though there are devices: its GIDs may come later.

        A GID table names an interface once that has an address; a bond may be made after the start.
        """
        netdevs, _, devices = self._made_for
        return bool(devices) and len(self._ports) < len(set(netdevs))

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._sysfs / "infiniband"))  # noqa: PTH208
        except OSError:
            return []  # no such class, or its module is just going

    @property
    def ports(self) -> dict[str, tuple[Port, ...]]:
        """Of each netdev that has some."""
        return dict(self._ports)

    @property
    def netdevs(self) -> list[str]:
        """Those with a verbs port."""
        return sorted(self._ports)

    def read(self) -> dict[str, bool | None]:
        """`active` of each."""
        return {netdev: self.active(netdev) for netdev in self._ports}

    def active(self, netdev: str) -> bool | None:
        """Whether a port of it is ACTIVE; None when there is none, or it cannot be asked."""
        return any_active({port: self._state(port) for port in self._ports.get(netdev, ())})

    def _state(self, port: Port) -> int | None:
        if self._verbs is None:
            return None
        try:
            return self._verbs.port_state(port)
        except Exception:
            return None


def _ports(device: str, sysfs: Path) -> list[Port]:
    """The ports of a device."""
    names = [p.name for p in (sysfs / "infiniband" / device / "ports").glob("*")]
    return [Port(device, int(name)) for name in sorted(names) if name.isdecimal()]


def _gid_netdevs(port: Port, sysfs: Path) -> set[str]:
    """The interfaces that a port's GID table names; an entry without a GID cannot be read."""
    found = set()
    table = sysfs / "infiniband" / port.device / "ports" / str(port.number) / "gid_attrs" / "ndevs"
    for path in table.glob("*"):
        try:
            found.add(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            continue
    return found - {""}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
