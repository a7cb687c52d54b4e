"""From which UDP source ports this host's prober is to probe paths that are moved.

ECMP chooses among equal ways by a hash of addresses and ports (RFC 2992), so another source port
may take a path's probes another way; no other path's are touched. The page is the twin of
``fabric/clock_ports.h``. It holds until it is written again: a service that dies leaves the ports
as they are, and the next one finds them here.
"""

from __future__ import annotations

import ipaddress
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from clocksync.page.latch import Kind, LatchFile, is_sealed, seal

MOST: Final = 48
LEAST: Final = 49152
"""Of the ports; dynamic and private ones (RFC 6335). RoCEv2 keeps to these for its entropy too."""
ENTRY_FIELDS: Final = {
    "own": "16s", "peer": "16s", "host_id": "I", "peer_port": "H", "port": "H",
}  # fmt: skip
_ENTRY: Final = struct.Struct("<" + "".join(ENTRY_FIELDS.values()))
_AT: Final = 16
KIND: Final = Kind("ports", magic=0x54504346, version=1, record=_AT + MOST * _ENTRY.size)


class Ends(NamedTuple):
    """A path, by what the prober knows of it."""

    own: str
    """Address of our link."""
    peer: str
    port: int
    """To which the probes go."""
    host: int
    """The peer's id, not 0."""


class PortsError(Exception):
    """These bytes are no record of ports; the text says why."""


def encode(ports: Mapping[Ends, int]) -> bytes:
    """A sealed record; of more than `MOST` paths, those that come first.

    Args:
        ports: source port by path, `LEAST` or greater.

    Raises:
        ValueError: an address is none, or a port cannot be.
    """
    data = b""
    for ends, port in list(ports.items())[:MOST]:
        if not LEAST <= port <= 0xFFFF:
            raise ValueError(f"source port {port}: {LEAST} to 65535")
        data += _ENTRY.pack(_packed(ends.own), _packed(ends.peer), ends.host, ends.port, port)
    return seal(struct.pack("<QQ", 0, time.monotonic_ns()) + data.ljust(MOST * _ENTRY.size, b"\0"))


def decode(record: bytes) -> dict[Ends, int]:
    """The inverse of `encode`; entries that the prober leaves out are left out.

    Raises:
        PortsError: it is damaged, or of another size.
    """
    if len(record) != KIND.record or not is_sealed(record):
        raise PortsError("no record of source ports, or a damaged one")
    found = {}
    for own, peer, host, peer_port, port in _ENTRY.iter_unpack(record[_AT:]):
        if port >= LEAST and host and peer_port:
            found[Ends(_text(own), _text(peer), peer_port, host)] = port
    return found


class PortPage:
    """Where the prober of this host finds the ports."""

    def __init__(self, directory: Path) -> None:
        """Take over the page that is there, or make one; ``directory``: the prober's.

        Raises:
            OSError: it cannot be written.
        """
        self._file = LatchFile(KIND, directory, encode({}))
        try:
            self.held = decode(self._file.found)
            """What it says now."""
        except PortsError:
            self.held = {}

    def write(self, ports: Mapping[Ends, int]) -> None:
        """Have paths probed from these, and all others from their links' own ports."""
        if dict(ports) != self.held:
            self._file.write(encode(ports))
            self.held = dict(ports)

    def close(self) -> None:
        """Let go of it; what it says goes on to hold."""
        self._file.close()


def _packed(address: str) -> bytes:
    ip = ipaddress.ip_address(address)
    return bytes(10) + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed


def _text(address: bytes) -> str:
    ip = ipaddress.IPv6Address(address)
    return str(ip.ipv4_mapped or ip)
