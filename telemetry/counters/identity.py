"""Which driver and which device is behind an interface (ETHTOOL_GDRVINFO).

An ioctl speaks of the caller's network namespace; /sys may be mounted for another.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

from telemetry.counters.ethdriver import GDRVINFO, SIOCETHTOOL, driver_name
from telemetry.counters.types import CounterError

_INFO = struct.Struct("=I192x")
"""struct ethtool_drvinfo."""
_BUS = slice(100, 132)


def bus_info(info: bytes) -> str:
    """The device's address on its bus, as ``0000:17:00.0``; empty: it has none."""
    return info[_BUS].split(b"\0", 1)[0].decode("ascii", "replace")


def driver_and_bus(netdev: str) -> tuple[str, str]:
    """Driver and bus address of an interface; empty where the kernel does not know them.

    May block as long as the driver does.
    """
    buffer = ctypes.create_string_buffer(_INFO.pack(GDRVINFO), _INFO.size)
    request = struct.pack("16sP16x", netdev.encode()[:15], ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        try:
            fcntl.ioctl(asked, SIOCETHTOOL, request)
            return driver_name(buffer.raw), bus_info(buffer.raw)
        except (OSError, CounterError):
            return "", ""
