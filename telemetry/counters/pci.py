"""A NIC's PCI function: AER counts and a link slower or narrower than it could be.

Formats: Documentation/ABI/testing/sysfs-bus-pci-devices-aer (``aer_dev_*``: a line for each error
bit, then ``TOTAL_ERR_*``; kernels before 5.2 write the bit's long name with spaces) and
sysfs-bus-pci (``current_link_speed`` and the like: ``16.0 GT/s PCIe``, before 5.8 ``16 GT/s``).
What a link could be is the lesser of what the device and the port above it can: a x16 card in a x8
slot is no fault.

Between a NIC and the root port there may be switches, each with a link of its own to the port
above it. Sysfs nests the devices as the bus does: NIC, downstream port, upstream port, and so on
up to the root port. A switch's uplink is that of its upstream port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from telemetry.counters.types import CounterError, Sample, Status

_SYSFS = Path("/sys/class/net")
_LINE = re.compile(r"^(?P<name>[A-Za-z].*?)[ \t]+(?P<count>[0-9]{1,20})$")
_SPEED = re.compile(r"^([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s(?: PCIe)?$")
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_MAX_TEXT = 4096
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_MOST_SWITCHES = 8

AER_FILES = {
    "aer_correctable": "aer_dev_correctable",
    "aer_nonfatal": "aer_dev_nonfatal",
    "aer_fatal": "aer_dev_fatal",
}
"""Canonical counter → file."""


def aer(text: str) -> dict[str, int]:
    """Error name → count of one ``aer_dev_*`` file, ``TOTAL_ERR_*`` as ``total``.

    The total is the kernel's own and may exceed the sum: it counts messages of which the bits were
    masked, too; where a kernel gives none it is the sum.

    Raises:
        CounterError: not such a file.
    """
    found: dict[str, int] = {}
    for line in _lines(text):
        match = _LINE.match(line)
        if match is None:
            raise CounterError(f"AER line {line[:60]!r} is not 'NAME COUNT'")
        name, count = match["name"], int(match["count"])
        name = "total" if name.startswith("TOTAL_ERR_") else name
        if name in found:
            raise CounterError(f"AER error {name[:40]!r} is there twice")
        if count >= 1 << 64:
            raise CounterError(f"AER count {count} has more than 64 bits")
        found[name] = count
    if not found:
        raise CounterError("no AER counts in it")
    if "total" not in found:
        found["total"] = sum(found.values())
    return found


def speed(text: str) -> float | None:
    """Transfers/s per lane of a ``*_link_speed`` file; None for ``Unknown``.

    Raises:
        CounterError: not a speed.
    """
    word = text.strip()
    if word in ("Unknown", "Unknown speed"):
        return None
    match = _SPEED.match(word)
    if match is None:
        raise CounterError(f"{word[:40]!r} is no speed of a PCIe link")
    return float(match[1]) * 1e9


def width(text: str) -> int | None:
    """Lanes of a ``*_link_width`` file; None for 0 and 255, a link that is not there.

    Raises:
        CounterError: not a width.
    """
    word = text.strip()
    if word in ("0", "255"):
        return None
    if not (word.isascii() and word.isdecimal()) or len(word) > 3 or int(word) not in _WIDTHS:
        raise CounterError(f"{word[:40]!r} is no width of a PCIe link")
    return int(word)


@dataclass(frozen=True, slots=True)
class PciLink:
    """A function's link now, and the best that it and its port can do; None: not known."""

    speed: float | None
    width: int | None
    best_speed: float | None
    best_width: int | None

    @property
    def downgraded(self) -> str:
        """What it lacks, for people; empty when nothing, or when it is not known."""
        words = []
        if self.speed and self.best_speed and self.speed < self.best_speed:
            words.append(f"{self.speed / 1e9:g} of {self.best_speed / 1e9:g} GT/s")
        if self.width and self.best_width and self.width < self.best_width:
            words.append(f"x{self.width} of x{self.best_width}")
        return ", ".join(words)

    @property
    def share(self) -> float:
        """What it carries of what it could, 0 to 1; 1 where that is not known."""
        lanes = self.width / self.best_width if self.width and self.best_width else 1.0
        rate = self.speed / self.best_speed if self.speed and self.best_speed else 1.0
        return min(1.0, lanes) * min(1.0, rate)


def link(device: Mapping[str, str], port: Mapping[str, str]) -> PciLink:
    """From the ``*_link_*`` files of a function and of the port above it (which may be empty).

    Raises:
        CounterError: one of them holds no such thing.
    """

    def best(name: str) -> list[str]:
        return [each[name] for each in (device, port) if name in each]

    speeds = [x for x in map(speed, best("max_link_speed")) if x is not None]
    widths = [x for x in map(width, best("max_link_width")) if x is not None]
    return PciLink(
        speed(device.get("current_link_speed", "Unknown")),
        width(device.get("current_link_width", "0")),
        min(speeds, default=None),
        min(widths, default=None),
    )


def uplink(function: Path) -> PciLink | None:
    """The worst link above a function's own, up to the root port; None: there is no switch.

    Raises:
        CounterError: a file holds no such thing.
        OSError: it cannot be read.
    """
    worst: PciLink | None = None
    device = function.parent.parent
    for _ in range(_MOST_SWITCHES):
        if not (_FUNCTION.match(device.name) and _FUNCTION.match(device.parent.name)):
            break
        found = link(_link_files(device), _link_files(device.parent))
        if worst is None or found.share < worst.share:
            worst = found
        device = device.parent.parent
    return worst


class PciSource:
    """AER and link of the PCI function behind a netdev; see `telemetry.counters.types.Source`.

    A virtual device has none, and then the source is off.
    """

    period_ns = 10**9

    def __init__(self, netdev: str, *, sysfs: Path = _SYSFS) -> None:
        """Args: ``sysfs``: ``/sys/class/net``."""
        self._netdev = netdev
        self._device = sysfs / netdev / "device"
        self._status = Status("pci", netdev, on=False, reason="not read yet")

    @property
    def status(self) -> Status:
        """Whether it is read, or why not."""
        return self._status

    def read(self, now_ns: int) -> Sample | None:
        """Read it now."""
        try:
            function = self._device.resolve(strict=True)
            if (function / "subsystem").resolve().name == "virtio":
                function = function.parent
            if (function / "subsystem").resolve().name != "pci":
                raise FileNotFoundError
            inode = function.stat().st_ino
        except OSError:
            self._status = Status("pci", self._netdev, on=False, reason="not a PCI device")
            return None
        values: dict[str, int] = {}
        gauges: dict[str, float] = {}
        skipped: dict[str, str] = {}
        for name, file in AER_FILES.items():
            try:
                values[name] = aer(_read(function / file))["total"]
            except FileNotFoundError:
                skipped[name] = "the kernel does not count AER for it"
            except (OSError, CounterError) as error:
                skipped[name] = str(error)
        try:
            found = link(_link_files(function), _link_files(function.parent))
        except (OSError, CounterError) as error:
            skipped["pcie_speed"] = str(error)
        else:
            gauges, unknown = _gauges("pcie", found)
            skipped |= unknown
        try:
            above = uplink(function)
        except (OSError, CounterError) as error:
            skipped["pcie_uplink_speed"] = str(error)
        else:
            if above is not None:
                known, unknown = _gauges("pcie_uplink", above)
                gauges |= known
                skipped |= unknown
        if not values and not gauges:
            why = "neither AER counts nor a PCIe link"
            self._status = Status("pci", self._netdev, on=False, reason=why)
            return None
        missing = "; ".join(f"{key}: {why}" for key, why in sorted(skipped.items()))
        self._status = Status("pci", self._netdev, on=True, reason=missing)
        return Sample(
            source="aer",
            device=function.name,
            incarnation=inode,
            at_ns=now_ns,
            values=values,
            gauges=gauges,
            skipped=skipped,
        )

    def close(self) -> None:
        """Nothing is held open."""


def _gauges(prefix: str, found: PciLink) -> tuple[dict[str, float], dict[str, str]]:
    """The readings of a link, and those that are not known."""
    pairs = (
        (f"{prefix}_speed", found.speed),
        (f"{prefix}_speed_max", found.best_speed),
        (f"{prefix}_width", found.width),
        (f"{prefix}_width_max", found.best_width),
    )
    known = {name: float(value) for name, value in pairs if value is not None}
    return known, {name: "not known" for name, value in pairs if value is None}


def _lines(text: str) -> list[str]:
    if len(text) > _MAX_TEXT:
        raise CounterError(f"{len(text)} characters are too many")
    return [line for line in text.split("\n") if line.strip()]


def _read(path: Path) -> str:
    """An attribute of sysfs, which fits in a page."""
    try:
        return path.read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise CounterError(f"{path.name} is not text") from error


def _link_files(folder: Path) -> dict[str, str]:
    """Those ``*_link_*`` files that are there."""
    found = {}
    for which in ("current", "max"):
        for what in ("speed", "width"):
            path = folder / f"{which}_link_{what}"
            if path.is_file():
                found[path.name] = _read(path)
    return found
