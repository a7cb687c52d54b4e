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

from fabricd.links.address_choice import AddressChoice, DeviceAddress, choose_address

IFF_UP = 0x1
_SIOCGIFFLAGS = 0x8913
_LINK_ATTRIBUTES = frozenset(
    {"IFLA_IFNAME", "IFLA_CARRIER", "IFLA_CARRIER_DOWN_COUNT", "IFLA_CARRIER_UP_COUNT",
     "IFLA_ADDRESS", "IFLA_MTU"}
)  # fmt: skip
_ADDRESS_ATTRIBUTES = frozenset({"IFA_LOCAL", "IFA_ADDRESS", "IFA_FLAGS"})


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
    """Devices and their addresses, kept current by netlink messages."""

    devices: dict[str, Reading] = field(default_factory=dict)
    addresses: dict[int, dict[tuple[str, int], DeviceAddress]] = field(default_factory=dict)
    """ifindex → (address, prefix length) → it, in the order in which they appeared. A label that
    an address may have ("rail0:1") is no device."""
    loaded: bool = False
    """The kernel was asked for everything once: what is not here does not exist."""
    in_use: dict[int, str] = field(default_factory=dict)
    """ifindex → the address that was chosen last."""

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

    def choice_of(self, netdev: str) -> AddressChoice:
        """The device's address, by the rules of `fabricd.links.address_choice`.

        A link-local one is never chosen: the ``address`` key asks for it.
        """
        device = self.devices.get(netdev)
        if device is None:
            return AddressChoice(None)
        own = self.addresses.get(device.ifindex, {}).values()
        choice = choose_address(own, current=self.in_use.get(device.ifindex))
        if choice.address is not None:
            self.in_use[device.ifindex] = choice.address
        return choice

    def address_of(self, netdev: str) -> str | None:
        """The address of `choice_of`; None when there is none."""
        return self.choice_of(netdev).address

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
            self.in_use.pop(index, None)
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
        key = (address, int(message.get("prefixlen", 0)))
        own = self.addresses.setdefault(index, {})
        if event == "RTM_DELADDR":
            own.pop(key, None)
        else:
            flags = int(attributes.get("IFA_FLAGS", message.get("flags", 0)))
            own[key] = DeviceAddress(address, flags, int(message["scope"]))
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
