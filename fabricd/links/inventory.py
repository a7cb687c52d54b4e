"""What devices are there: names, indices, addresses, administrative state. Shell side, thin.

Everything comes from rtnetlink (and one ioctl), which speaks of the caller's network namespace;
/sys may be mounted for another.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

IFF_UP = 0x1
_SIOCGIFFLAGS = 0x8913
_RT_SCOPE_UNIVERSE = 0
_LINK_ATTRIBUTES = frozenset(
    {"IFLA_IFNAME", "IFLA_CARRIER", "IFLA_CARRIER_DOWN_COUNT", "IFLA_CARRIER_UP_COUNT",
     "IFLA_ADDRESS", "IFLA_MTU"}
)  # fmt: skip
_ADDRESS_ATTRIBUTES = frozenset({"IFA_LOCAL", "IFA_ADDRESS"})


@dataclass(frozen=True, slots=True)
class Reading:
    """One device as a netlink message described it."""

    netdev: str
    ifindex: int
    admin_up: bool
    carrier: bool
    down_count: int
    up_count: int
    mac: str = ""
    mtu: int = 0


@dataclass(slots=True)
class Inventory:
    """Devices and their global addresses, kept current by netlink messages."""

    devices: dict[str, Reading] = field(default_factory=dict)
    addresses: dict[int, list[str]] = field(default_factory=dict)
    """ifindex → global addresses in the order in which they appeared."""
    loaded: bool = False
    """The kernel was asked for everything once: what is not here does not exist."""

    def take(self, message: dict[str, Any]) -> str:
        """Apply one netlink message; returns the netdev's name if that device changed.

        Raises:
            KeyError, TypeError, ValueError: not a message of the kinds known here.
        """
        event = message["event"]
        if event in ("RTM_NEWLINK", "RTM_DELLINK"):
            return self._link(event, message)
        if event in ("RTM_NEWADDR", "RTM_DELADDR"):
            return self._address(event, message)
        return ""

    def address_of(self, netdev: str) -> str | None:
        """The device's first global address, IPv4 first; None when there is none."""
        device = self.devices.get(netdev)
        own = self.addresses.get(device.ifindex, []) if device else []
        return next((a for a in own if ":" not in a), own[0] if own else None)

    def clear(self) -> None:
        """Forget everything, before a new dump."""
        self.devices.clear()
        self.addresses.clear()

    def _link(self, event: str, message: dict[str, Any]) -> str:
        attributes = _picked(message, _LINK_ATTRIBUTES)
        name, index = str(attributes["IFLA_IFNAME"]), int(message["index"])
        if event == "RTM_DELLINK":
            # The same name may already be a new device: only the index named is gone.
            if name in self.devices and self.devices[name].ifindex == index:
                del self.devices[name]
            self.addresses.pop(index, None)
            return name
        for other, device in list(self.devices.items()):
            if device.ifindex == index and other != name:
                del self.devices[other]  # renamed
        self.devices[name] = Reading(
            name,
            index,
            bool(int(message["flags"]) & IFF_UP),
            bool(attributes.get("IFLA_CARRIER", 0)),
            int(attributes.get("IFLA_CARRIER_DOWN_COUNT", 0)),
            int(attributes.get("IFLA_CARRIER_UP_COUNT", 0)),
            str(attributes.get("IFLA_ADDRESS", "")),
            int(attributes.get("IFLA_MTU", 0)),
        )
        return name

    def _address(self, event: str, message: dict[str, Any]) -> str:
        attributes = _picked(message, _ADDRESS_ATTRIBUTES)
        index = int(message["index"])
        text = attributes.get("IFA_LOCAL") or attributes["IFA_ADDRESS"]
        address = str(ipaddress.ip_address(text))
        own = self.addresses.setdefault(index, [])
        if event == "RTM_NEWADDR":
            if int(message["scope"]) == _RT_SCOPE_UNIVERSE and address not in own:
                own.append(address)
        elif address in own:
            own.remove(address)
        return next((name for name, d in self.devices.items() if d.ifindex == index), "")


def _picked(message: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Those attributes; decoding all fifty of a link takes a millisecond."""
    return {item[0]: item[1] for item in message["attrs"] if item[0] in names}


class AdminProbe:
    """Asks the kernel whether a device is administratively up (netdevice(7), SIOCGIFFLAGS).

    A few microseconds: for the moment a carrier is lost, before netlink has said why.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def admin_up(self, netdev: str) -> bool | None:
        """None when there is no such device."""
        request = struct.pack("16s16x", netdev.encode()[:15])
        try:
            answer = fcntl.ioctl(self._socket, _SIOCGIFFLAGS, request)
        except OSError:
            return None
        return bool(struct.unpack_from("H", answer, 16)[0] & IFF_UP)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
