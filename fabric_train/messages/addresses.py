"""IP addresses of this host, and ``ip:port`` texts."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

_SIOCGIFADDR = 0x8915
_ELSEWHERE = ("192.0.2.1", 9)  # RFC 5737: for documents; nothing is sent there


class AddressError(Exception):
    """No usable address. The text says of what."""


def join(address: str, port: int) -> str:
    """``ip:port``; an IPv6 address gets brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split(text: str) -> tuple[str, int]:
    """IP address and port of ``ip:port``. Raises ``AddressError``."""
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise AddressError(f"{text:.80} is no ip:port") from None
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
        raise AddressError(f"{text:.80} has no port between 1 and 65535")
    return address, int(port)


def of_interface(interface: str) -> str:
    """The IPv4 address of a network interface. Raises ``AddressError``."""
    name = interface.encode()
    if not 0 < len(name) < 16:
        raise AddressError(f"{interface:.40} is no name of an interface")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            answer = fcntl.ioctl(one, _SIOCGIFADDR, struct.pack("256s", name))
        except OSError as error:
            raise AddressError(f"interface {interface}: {error.strerror}") from None
    return socket.inet_ntoa(answer[20:24])


def of_default_route() -> str:
    """The address from which this host reaches others. Raises ``AddressError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(_ELSEWHERE)
        except OSError as error:
            raise AddressError(
                f"no address of this host leads to others ({error.strerror}): "
                "name one with --address or --interface"
            ) from None
        address: str = one.getsockname()[0]
    return address
