"""Where the metrics endpoint listens, as text."""

from __future__ import annotations

import ipaddress
import socket

DEFAULT_LISTEN = "127.0.0.1:19200"
"""Neither OpenTelemetry's 9464 nor any other port on Prometheus' list of default ports."""


def parse_listen(listen: str) -> tuple[str, int]:
    """``"127.0.0.1:19200"`` or ``"[::1]:9464"`` as (address, port); port 0 lets the kernel choose.

    Raises:
        ValueError: neither.
    """
    address, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{listen!r}: expected ADDRESS:PORT")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address or not address:
        raise ValueError(f"{listen!r}: expected ADDRESS:PORT, an IPv6 address in brackets")
    return address, int(port)


def is_at(sock: socket.socket, listen: str) -> bool:
    """Whether a socket has the address and port that ``listen`` says. Asks for a name's addresses.

    Raises:
        ValueError: as `parse_listen`.
        OSError: the name cannot be resolved (now).
    """
    address, port = parse_listen(listen)
    where = sock.getsockname()
    if where[1] != port:
        return False
    own = ipaddress.ip_address(where[0])
    try:
        return ipaddress.ip_address(address) == own
    except ValueError:
        found = socket.getaddrinfo(address, port, family=sock.family, type=socket.SOCK_STREAM)
    return any(ipaddress.ip_address(entry[4][0]) == own for entry in found)
