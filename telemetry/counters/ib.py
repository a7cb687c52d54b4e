"""Counters of a verbs port from sysfs: ``counters`` (the PMA's) and ``hw_counters`` (the driver's).

Each is a folder with one file per counter, a decimal number in it. ``hw_counters/lifespan`` is how
many milliseconds the kernel answers from its cache (drivers/infiniband/core/sysfs.c).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from telemetry.counters.polled import PERIOD_NS, Polled, SourceOff, why
from telemetry.counters.table import Table, add
from telemetry.counters.tables.ib_port import IB_PORT
from telemetry.counters.tables.rdma import recognise
from telemetry.counters.types import WIDE, CounterError, Sample, Shape

SYSFS = Path("/sys/class/infiniband")
LIFESPAN = "lifespan"
MAX_LIFESPAN_MS = 10_000
"""The kernel takes no longer one."""
_LONGEST = 20
"""Digits of 2**64 - 1."""
_STUCK_32 = (1 << 32) - 1


def number(text: bytes) -> int:
    """The number in a counter file.

    Raises:
        CounterError: there is none (``N/A (no PMA)``), or it does not fit into 64 bits.
    """
    digits = text.strip(b" \t\n\0")
    if not digits.isdigit() or len(digits) > _LONGEST:
        raise CounterError(f"no number: {digits[:32]!r}")
    value = int(digits)
    if value > WIDE.maximum:
        raise CounterError(f"{value} is no 64-bit count")
    return value


def lifespan_ns(text: bytes) -> int:
    """The time in a ``lifespan`` file.

    Raises:
        CounterError: it is none that the kernel takes.
    """
    milliseconds = number(text)
    if milliseconds > MAX_LIFESPAN_MS:
        raise CounterError(f"lifespan of {milliseconds} ms")
    return milliseconds * 1_000_000


def parse(
    files: Mapping[str, bytes | OSError], table: Table
) -> tuple[dict[str, int], dict[str, Shape], dict[str, str]]:
    """Canonical values, shapes and what was skipped (native name → why).

    What is at the end of its range has its value, and is named there, too. A canonical counter that
    several files add up to is skipped when one of them is unreadable: a sum without a part would
    pass for a setback.

    Args:
        files: name → content, or why it could not be read.
        table: the driver's.
    """
    values: dict[str, int] = {}
    shapes: dict[str, Shape] = {}
    skipped: dict[str, str] = {}
    lost: set[str] = set()
    for name, text in files.items():
        row = table.row(name)
        if row is None:
            continue
        try:
            if isinstance(text, OSError):
                raise CounterError(why(text))
            value = number(text)
            if row.scale > 1 and value == _STUCK_32:
                raise CounterError("stuck at 2**32 - 1: the device has no 64-bit counter")
            add(row, value, values, shapes)
            if row.shape.saturates and value == row.shape.maximum:
                skipped[name] = f"stands at its end, {value}: it counts no more until it is cleared"
        except CounterError as error:
            skipped[name] = str(error)
            lost.add(row.canonical)
    for canonical in lost:
        values.pop(canonical, None)
        shapes.pop(canonical, None)
    return values, shapes, skipped


class _Folder(Polled):
    """Reads the mapped files of one folder of a port."""

    folder: str

    def __init__(
        self, device: str, port: int, *, sysfs: Path = SYSFS, period_ns: int = PERIOD_NS
    ) -> None:
        super().__init__(f"{device}/{port}", period_ns)
        self._path = sysfs / device / "ports" / str(port) / self.folder
        self._incarnation: int | None = None
        self._names: list[str] = []
        self._table: Table | None = None

    @classmethod
    def open(
        cls, device: str, port: int, *, sysfs: Path = SYSFS, period_ns: int = PERIOD_NS
    ) -> _Folder:
        """A source for a port, there or not."""
        return cls(device, port, sysfs=sysfs, period_ns=period_ns)

    def table(self, names: list[str]) -> Table:
        """The table for these files; raises SourceOff when there is none."""
        raise NotImplementedError

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The inode number of a sysfs folder is never given again, so it tells a reborn device.
            born = os.fstat(fd).st_ino
            if born != self._incarnation or self._table is None:
                with os.scandir(fd) as entries:
                    names = sorted(entry.name for entry in entries)
                self._table = self.table([name for name in names if name != LIFESPAN])
                self._names = [name for name in names if self._table.row(name) is not None]
                self._incarnation = born
            self.before(fd)
            files: dict[str, bytes | OSError] = {}
            for name in self._names:
                try:
                    files[name] = _content(name, fd)
                except OSError as error:
                    files[name] = error
        finally:
            os.close(fd)
        values, shapes, skipped = parse(files, self._table)
        if not values:
            raise SourceOff(next(iter(skipped.values()), "no known counter"))
        return Sample(
            self.source,
            self.device,
            born,
            now_ns,
            values=values,
            shapes=shapes,
            skipped=skipped,
            info={"driver": self._table.driver},
        )

    def before(self, fd: int) -> None:
        """Before the counters are read; `fd` is the folder."""


class PortCounters(_Folder):
    """The PMA's counters: narrow and saturating, the same for all devices."""

    source = "ib_port"
    folder = "counters"

    def table(self, names: list[str]) -> Table:  # noqa: ARG002
        """The same for all."""
        return IB_PORT


class HwCounters(_Folder):
    """The driver's own counters of the transport.

    Without those of queue pairs that are bound to counters of their own (``rdma statistic qp``):
    `telemetry.counters.rdma` has these, too.
    """

    source = "ib_hw"
    folder = "hw_counters"

    def table(self, names: list[str]) -> Table:
        """By the names."""
        found = recognise(names)
        if found is None:
            raise SourceOff("no table for a driver with these counters")
        return found

    def before(self, fd: int) -> None:
        """Take the lifespan, which an operator may change at any time."""
        try:
            self.lives(lifespan_ns(_content(LIFESPAN, fd)))
        except FileNotFoundError:
            self.lives(0)


def _content(name: str, folder: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)
