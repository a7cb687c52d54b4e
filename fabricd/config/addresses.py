"""IP addresses from text and to text. A list of peers has ten thousands of them."""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


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


def address_text(address: Address) -> str:
    """As ``str``, which costs five times as much of an IPv6 address."""
    if address.version == 4:
        return socket.inet_ntoa(address.packed)
    text = socket.inet_ntop(socket.AF_INET6, address.packed)
    # The library writes no part of it as IPv4, and has the zone.
    return str(address) if "." in text or address.scope_id else text
