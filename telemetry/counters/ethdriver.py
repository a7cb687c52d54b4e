"""The driver's own statistics (``ethtool -S``): names and values by the SIOCETHTOOL ioctl.

Netlink has no such statistics, so it is the ioctl: ETHTOOL_GDRVINFO, _GSSET_INFO, _GSTRINGS and
_GSTATS (include/uapi/linux/ethtool.h). Names and values come apart, and both follow the device's
queues and priorities, so the count is asked before each reading and the names are compared with
the known ones when it changed, and every `NAMES_EVERY` readings.

Older kernels fill in as many values as the driver has *now*, however large the caller's buffer. So
the buffer is large enough for any device, and its pages exist only once they are written.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import socket
import struct
from dataclasses import dataclass

from telemetry.counters.polled import PERIOD_NS, Polled, SourceOff
from telemetry.counters.table import Row, Table, add
from telemetry.counters.tables.ethtool import ETHTOOL_TABLES
from telemetry.counters.types import CounterError, Sample, Shape

SIOCETHTOOL = 0x8946
SIOCGIFINDEX = 0x8933
GDRVINFO, GSTRINGS, GSTATS, GSSET_INFO = 0x03, 0x1B, 0x1D, 0x37
ETH_SS_STATS = 1
NAME_LEN = 32
MOST = 1 << 16
"""Statistics of one device; a mlx5 with 128 channels has about 8,000."""
NAMES_EVERY = 30
_NAMES_BYTES = 12 + MOST * NAME_LEN


def driver_name(info: bytes) -> str:
    """The driver in a struct ethtool_drvinfo.

    Raises:
        CounterError: too short, or no name.
    """
    name = info[4:36].split(b"\0", 1)[0].decode("ascii", "replace")
    if len(info) < 36 or not name:
        raise CounterError(f"driver info of {len(info)} bytes")
    return name


def strings(data: bytes, count: int) -> list[str]:
    """Names of a struct ethtool_gstrings after its header, 32 bytes each.

    Raises:
        CounterError: fewer than `count`.
    """
    if count < 0 or len(data) < count * NAME_LEN:
        raise CounterError(f"{len(data)} bytes for {count} names")
    return [
        data[at : at + NAME_LEN].split(b"\0", 1)[0].decode("ascii", "replace").strip()
        for at in range(0, count * NAME_LEN, NAME_LEN)
    ]


@dataclass(frozen=True, slots=True)
class Picked:
    """Which statistics are read: position and row of each that the table maps."""

    count: int
    rows: tuple[tuple[int, Row], ...]


def pick(names: list[str], table: Table) -> Picked:
    """Choose the mapped statistics.

    Raises:
        CounterError: a mapped name comes twice, so one of both would count double.
    """
    rows = []
    seen: set[str] = set()
    for position, name in enumerate(names):
        row = table.row(name)
        if row is None:
            continue
        if name in seen:
            raise CounterError(f"statistic {name} comes twice")
        seen.add(name)
        rows.append((position, row))
    return Picked(len(names), tuple(rows))


def values(data: memoryview, picked: Picked) -> tuple[dict[str, int], dict[str, Shape]]:
    """Canonical values and shapes from an array of u64.

    Raises:
        CounterError: it is shorter than the names.
    """
    if len(data) < 8 * picked.count:
        raise CounterError(f"{len(data)} bytes for {picked.count} statistics")
    numbers = data[: 8 * picked.count].cast("Q")
    out: dict[str, int] = {}
    shapes: dict[str, Shape] = {}
    for position, row in picked.rows:
        add(row, numbers[position], out, shapes)
    return out, shapes


class Ioctl:
    """SIOCETHTOOL on a socket; sources of one thread share it and its buffer."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._map = mmap.mmap(-1, _NAMES_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.buffer = memoryview(self._map)

    def ask(self, netdev: str, request: bytes) -> None:
        """Put a request into the buffer and have it answered there.

        Raises:
            OSError: the kernel refused it.
        """
        self.buffer[: len(request)] = request
        fcntl.ioctl(
            self._socket, SIOCETHTOOL, struct.pack("16sP16x", _ifname(netdev), self._address)
        )

    def ifindex(self, netdev: str) -> int:
        """The device's index; raises OSError when there is none."""
        answer = fcntl.ioctl(self._socket, SIOCGIFINDEX, struct.pack("16s24x", _ifname(netdev)))
        return int(struct.unpack_from("=i", answer, 16)[0])

    def driver(self, netdev: str) -> str:
        """The driver's name."""
        self.ask(netdev, struct.pack("=I192x", GDRVINFO))
        return driver_name(bytes(self.buffer[:196]))

    def count(self, netdev: str) -> int:
        """How many statistics it has; 0: none."""
        self.ask(netdev, struct.pack("=IIQI", GSSET_INFO, 0, 1 << ETH_SS_STATS, 0))
        mask, count = struct.unpack_from("=QI", self.buffer, 8)
        return int(count) if mask else 0

    def close(self) -> None:
        """Close the socket; the buffer goes with the last reference."""
        self._socket.close()


class DriverStatistics(Polled):
    """One netdev's own statistics."""

    source = "ethtool_driver"

    def __init__(self, netdev: str, ioctl: Ioctl | None = None, period_ns: int = PERIOD_NS) -> None:
        super().__init__(netdev, period_ns)
        self._ioctl = ioctl or Ioctl()
        self._born: int | None = None
        self._driver = ""
        self._raw_names = b""
        self._picked: Picked | None = None
        self._readings = 0

    @classmethod
    def open(
        cls, netdev: str, ioctl: Ioctl | None = None, period_ns: int = PERIOD_NS
    ) -> DriverStatistics:
        """A source for a netdev, there or not; sources of one thread may share the ioctl."""
        return cls(netdev, ioctl, period_ns)

    def sample(self, now_ns: int) -> Sample:
        """See `Polled.sample`."""
        ioctl, netdev = self._ioctl, self.device
        born = ioctl.ifindex(netdev)
        if born != self._born:
            self._picked, self._raw_names = None, b""
            self._driver = ioctl.driver(netdev)
            self._born = born
        table = ETHTOOL_TABLES.get(self._driver)
        if table is None:
            raise SourceOff(f"no table for the driver {self._driver}")
        count = ioctl.count(netdev)
        if not 0 < count <= MOST:
            raise SourceOff(f"the driver has {count} statistics")
        picked = self._names(count, table)
        if not picked.rows:
            raise SourceOff(f"none of the statistics of {self._driver} is known")
        ioctl.ask(netdev, struct.pack("=II", GSTATS, count))
        (got,) = struct.unpack_from("=I", ioctl.buffer, 4)
        if got != count:
            self._picked = None
            raise OSError(errno.EAGAIN, f"{count} statistics became {got}")
        found, shapes = values(ioctl.buffer[8:], picked)
        self._readings += 1
        return Sample(
            self.source,
            netdev,
            born,
            now_ns,
            values=found,
            shapes=shapes,
            info={"driver": self._driver},
        )

    def close(self) -> None:
        """Close the socket."""
        self._ioctl.close()

    def _names(self, count: int, table: Table) -> Picked:
        known = self._picked
        if known is not None and known.count == count and self._readings % NAMES_EVERY:
            return known
        self._ioctl.ask(self.device, struct.pack("=III", GSTRINGS, ETH_SS_STATS, count))
        (got,) = struct.unpack_from("=I", self._ioctl.buffer, 8)
        if got != count:
            self._picked = None
            raise OSError(errno.EAGAIN, f"{count} names became {got}")
        raw = bytes(self._ioctl.buffer[12 : 12 + count * NAME_LEN])
        if known is None or raw != self._raw_names:
            known = pick(strings(raw, count), table)
            self._picked, self._raw_names = known, raw
        return known


def _ifname(netdev: str) -> bytes:
    name = netdev.encode()
    if not 0 < len(name) < 16 or b"\0" in name:
        raise OSError(errno.ENODEV, f"no name of a device: {netdev!r}")
    return name
