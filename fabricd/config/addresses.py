"""IP addresses from text and to text. A list of peers has ten thousands of them."""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_MAPPED = bytes(10) + b"\xff\xff"


def parse_address(text: str) -> Address:
    """As `ipaddress.ip_address`, whose parser in Python costs three times as much.

    Raises:
        ValueError: it is none.
    """
    try:
        return ipaddress.IPv4Address(socket.inet_pton(socket.AF_INET, text))
    except (OSError, ValueError):
        pass
    try:
        return ipaddress.IPv6Address(socket.inet_pton(socket.AF_INET6, text))
    except (OSError, ValueError):
        return ipaddress.ip_address(text)  # One with a zone, or one that is none: it says why.


def is_one_host(address: Address) -> bool:
    """Whether packets can be sent to it, and one host gets them.

    As the plugin has it (nccl_plugin/host/address.cpp, ``reachable``). An IPv4-mapped address is
    none: sockets of IPv6 and of IPv4 would take it for different ones.
    """
    first = address.packed[0]
    if address.version == 4:
        return 0 < first < 224
    return first != 0xFF and address.packed[:12] != _MAPPED and any(address.packed)


def is_link_local(address: Address) -> bool:
    """As its property, which costs ten times as much."""
    packed = address.packed
    if len(packed) == 4:
        return packed[:2] == b"\xa9\xfe"
    return packed[0] == 0xFE and packed[1] & 0xC0 == 0x80


def zone_of(text: object) -> str | None:
    """What follows the ``%`` of an address; None: there is none."""
    head, percent, zone = text.partition("%") if isinstance(text, str) else ("", "", "")
    return zone if percent and head else None


def without_zone(address: Address) -> Address:
    """The address alone."""
    scoped = address.version == 6 and address.scope_id is not None
    return ipaddress.IPv6Address(address.packed) if scoped else address


def address_text(address: Address) -> str:
    """As ``str``, which costs five times as much of an IPv6 address."""
    if address.version == 4:
        return socket.inet_ntoa(address.packed)
    text = socket.inet_ntop(socket.AF_INET6, address.packed)
    # The library writes no part of it as IPv4, and has the zone.
    return str(address) if "." in text or address.scope_id else text
