"""Which driver and which device is behind an interface (ETHTOOL_GDRVINFO, ETHTOOL_GPERMADDR).

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
_GPERMADDR, _MOST_ADDRESS = 0x20, 32
_HEAD = struct.Struct("=II")
"""struct ethtool_perm_addr, and MAX_ADDR_LEN bytes after it."""


def bus_info(info: bytes) -> str:
    """The device's address on its bus, as ``0000:17:00.0``; empty: it has none."""
    return info[_BUS].split(b"\0", 1)[0].decode("ascii", "replace")


def driver_and_bus(netdev: str) -> tuple[str, str]:
    """Driver and bus address of an interface; empty where the kernel does not know them.

    May block as long as the driver does.
    """
    info = _ask(netdev, _INFO.pack(GDRVINFO))
    try:
        return (driver_name(info), bus_info(info)) if info else ("", "")
    except CounterError:
        return "", ""


def permanent_address(netdev: str) -> str:
    """The address that the device was made with, in hexadecimal; empty where it has none.

    Whatever the interface is called, and whatever address it was given: another one is another
    device. May block as long as the driver does.
    """
    answer = _ask(netdev, _HEAD.pack(_GPERMADDR, _MOST_ADDRESS) + bytes(_MOST_ADDRESS))
    size = min(_HEAD.unpack_from(answer)[1], _MOST_ADDRESS) if answer else 0
    address = answer[_HEAD.size : _HEAD.size + size]
    return address.hex(":") if any(address) else ""


def _ask(netdev: str, question: bytes) -> bytes:
    """What SIOCETHTOOL makes of a struct; empty: the kernel refuses."""
    buffer = ctypes.create_string_buffer(question, len(question))
    request = struct.pack("16sP16x", netdev.encode()[:15], ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        try:
            fcntl.ioctl(asked, SIOCETHTOOL, request)
        except OSError:
            return b""
    return buffer.raw
