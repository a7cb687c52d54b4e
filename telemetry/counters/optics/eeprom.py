"""Bytes of a module's memory from the kernel: ethtool netlink, or the older ioctl.

``ETHTOOL_MSG_MODULE_EEPROM_GET`` (Linux 5.13, Documentation/networking/ethtool-netlink.rst) reads a
part of a half page by device address, bank and page. The ioctl ``ETHTOOL_GMODULEEEPROM`` gives one
flat image: A0h and A2h of an SFP, or lower memory and the upper pages 00h to 03h in a row of a
QSFP; of CMIS only the lower memory and page 00h. Both need CAP_NET_ADMIN.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from typing import Any, Protocol

from pyroute2.netlink import NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket
from pyroute2.netlink.generic.ethtool import ethtoolheader

from telemetry.counters.optics.memory import DIAGNOSTIC, HALF, Half
from telemetry.counters.types import CounterError

ETHTOOL_MSG_MODULE_EEPROM_GET = 31
_SIOCETHTOOL, _GMODULEINFO, _GMODULEEEPROM = 0x8946, 0x42, 0x43
_SFF_8079, _SFF_8472 = 1, 2
_IFNAMSIZ = 16


class ethtool_module_eeprom_msg(genlmsg):  # type: ignore[misc]  # noqa: N801 (pyroute2's style)
    """Include/uapi/linux/ethtool_netlink.h, ETHTOOL_A_MODULE_EEPROM_*.

    Newer pyroute2 has one too, which gives the data as a list of numbers.
    """

    nla_map = (
        ("ETHTOOL_A_MODULE_EEPROM_UNSPEC", "none"),
        ("ETHTOOL_A_MODULE_EEPROM_HEADER", "ethtoolheader"),
        ("ETHTOOL_A_MODULE_EEPROM_OFFSET", "uint32"),
        ("ETHTOOL_A_MODULE_EEPROM_LENGTH", "uint32"),
        ("ETHTOOL_A_MODULE_EEPROM_PAGE", "uint8"),
        ("ETHTOOL_A_MODULE_EEPROM_BANK", "uint8"),
        ("ETHTOOL_A_MODULE_EEPROM_I2C_ADDRESS", "uint8"),
        ("ETHTOOL_A_MODULE_EEPROM_DATA", "cdata"),
    )
    ethtoolheader = ethtoolheader


class Eeprom(Protocol):
    """Reads half pages of one module."""

    def read(self, half: Half) -> bytes:
        """The 128 bytes of a half.

        Raises:
            OSError: the kernel says no; ENODEV, EOPNOTSUPP, EPERM, EIO say why.
            CounterError: what it gave is not what was asked for.
        """
        ...

    def close(self) -> None: ...  # noqa: D102


class NetlinkEeprom:
    """ETHTOOL_MSG_MODULE_EEPROM_GET.

    Raises:
        OSError: no generic netlink family ``ethtool``.
    """

    def __init__(self, netdev: str) -> None:
        self._netdev = netdev
        self._socket = GenericNetlinkSocket()
        try:
            self._socket.bind("ethtool", ethtool_module_eeprom_msg)
        except NetlinkError as error:
            self._socket.close()
            raise OSError(error.code, f"no ethtool netlink: {os.strerror(error.code)}") from error

    def read(self, half: Half) -> bytes:
        """See `Eeprom`."""
        try:
            replies = tuple(
                self._socket.nlm_request(
                    request(self._netdev, half),
                    msg_type=self._socket.prid,
                    msg_flags=NLM_F_REQUEST,
                )
            )
        except NetlinkError as error:
            text = f"{half} of {self._netdev}: {os.strerror(abs(error.code))}"
            raise OSError(abs(error.code), text) from error
        return answer(replies, half)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def request(netdev: str, half: Half) -> ethtool_module_eeprom_msg:
    """The message that asks for one half page of a netdev's module."""
    message = ethtool_module_eeprom_msg()
    message["cmd"] = ETHTOOL_MSG_MODULE_EEPROM_GET
    message["version"] = 1
    message["attrs"] = [
        (
            "ETHTOOL_A_MODULE_EEPROM_HEADER",
            {"attrs": [("ETHTOOL_A_HEADER_DEV_NAME", netdev)]},
        ),
        ("ETHTOOL_A_MODULE_EEPROM_OFFSET", half.offset),
        ("ETHTOOL_A_MODULE_EEPROM_LENGTH", HALF),
        ("ETHTOOL_A_MODULE_EEPROM_PAGE", half.page),
        ("ETHTOOL_A_MODULE_EEPROM_BANK", half.bank),
        ("ETHTOOL_A_MODULE_EEPROM_I2C_ADDRESS", half.device),
    ]
    return message


def answer(replies: tuple[Any, ...], half: Half) -> bytes:
    """The bytes in the kernel's answer.

    Raises:
        CounterError: there is no answer, or it has another size.
    """
    data = replies[0].get_attr("ETHTOOL_A_MODULE_EEPROM_DATA") if replies else None
    if data is None:
        raise CounterError(f"the kernel's answer holds no data of {half}")
    if len(data) != HALF:
        raise CounterError(f"the kernel gave {len(data)} bytes of {half} instead of {HALF}")
    return bytes(data)


class IoctlEeprom:
    """ETHTOOL_GMODULEINFO, then the part of ETHTOOL_GMODULEEEPROM's image that holds the half."""

    def __init__(self, netdev: str) -> None:
        self._netdev = netdev
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def read(self, half: Half) -> bytes:
        """See `Eeprom`."""
        information = bytearray(struct.pack("III", _GMODULEINFO, 0, 0) + bytes(32))
        self._call(information)
        _, kind, size = struct.unpack_from("III", information)
        at = place(half, kind, size)
        image = bytearray(struct.pack("IIII", _GMODULEEEPROM, 0, at, HALF) + bytes(HALF))
        self._call(image)
        return bytes(image[16:])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _call(self, buffer: bytearray) -> None:
        """SIOCETHTOOL with a struct ifreq that points at ``buffer``."""
        name = os.fsencode(self._netdev)
        if len(name) >= _IFNAMSIZ:
            raise OSError(errno.ENODEV, f"{self._netdev}: no such device")
        holder = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        ifreq = struct.pack(f"{_IFNAMSIZ}sP16x", name, ctypes.addressof(holder))
        fcntl.ioctl(self._socket, _SIOCETHTOOL, ifreq)


def place(half: Half, kind: int, size: int) -> int:
    """Where a half begins in the flat image (include/uapi/linux/ethtool.h, ETH_MODULE_*).

    Raises:
        OSError: EOPNOTSUPP: the image does not hold it.
    """
    if kind in (_SFF_8079, _SFF_8472):
        known = half.page == 0 and half.bank == 0
        at = half.offset + (256 if half.device == DIAGNOSTIC else 0)
    else:
        known = half.device != DIAGNOSTIC and half.bank == 0
        at = HALF * (half.page + 1) if half.upper else 0
    if not known or at + HALF > size:
        raise OSError(errno.EOPNOTSUPP, f"the driver's image of {size} bytes has no {half}")
    return at
