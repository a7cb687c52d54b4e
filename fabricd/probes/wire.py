"""The probe packet's layout and tag, for ``fabricctl sniff``; the prober has its own in C++.

Layout and rules are in ``prober/src/core/wire.h``: 192 bytes, little-endian, the last 16 a keyed
BLAKE2s-128 (RFC 7693) over a pseudo-header of both addresses and ports and the first 176 bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import struct

from fabricd.probes.layout import WIRE_SIZE

Endpoint = tuple[str, int]
"""Address and UDP port."""

FIELDS: tuple[tuple[str, str], ...] = (
    ("magic", "I"),
    ("version", "B"),
    ("flags", "B"),
    ("size", "H"),
    ("host_id", "I"),
    ("path", "I"),
    ("incarnation", "Q"),
    ("challenge", "Q"),
    ("response", "Q"),
    ("peer_incarnation", "Q"),
    ("seq", "Q"),
    ("tx_ref_seq", "Q"),
    ("tx_ref_stamp", "q"),
    ("rx_ref_seq", "Q"),
    ("rx_ref_stamp", "q"),
    ("rx_max", "Q"),
    ("rx_bitmap", "Q"),
    ("rx_lost", "I"),
    ("rx_missed", "I"),
    ("rx_silent_us", "I"),
    ("interval_us", "I"),
    ("due_time", "q"),
    ("awake_us", "I"),
    ("clock_message0", "Q"),
    ("clock_message1", "Q"),
    ("clock_message2", "Q"),
    ("clock_message3", "Q"),
    ("next_due", "I"),
    ("peer_report", "Q"),
)
"""Name and ``struct`` code of every field before the tag, in order."""

TRAIN, REPORT, STALLED, HW_STAMPS, BYE, ROAMS = 3, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6
MTU = 1 << 7
"""Bits of ``flags``; what they mean is in ``prober/src/core/wire.h``."""

MTU_MAGIC = 0x554D5446
"""First word of a packet of ``prober/src/core/mtu.h``."""

BODY = struct.Struct("<" + "".join(code for _, code in FIELDS))
TAG_SIZE = WIRE_SIZE - BODY.size


def tag(key: bytes, body: bytes, source: Endpoint, destination: Endpoint) -> bytes:
    """The tag of ``body`` (176 bytes) sent from ``source`` to ``destination``."""
    head = b""
    for address, port in (source, destination):
        ip = ipaddress.ip_address(address)
        mapped = bytes(10) + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed
        head += mapped + struct.pack("<H", port)
    return hashlib.blake2s(head + body, key=key, digest_size=TAG_SIZE).digest()


def genuine(packet: bytes, key: bytes, source: Endpoint, destination: Endpoint) -> bool:
    """True if the packet's tag is right for this key and these ends."""
    if len(packet) != WIRE_SIZE:
        return False
    body = packet[: BODY.size]
    return hmac.compare_digest(packet[BODY.size :], tag(key, body, source, destination))
