"""LLDP frames (IEEE 802.1AB-2016): which switch and port a link is plugged into. Pure.

A frame is Ethernet with type 0x88cc and a list of TLVs: 7 bits of type, 9 bits of length, the value
(clause 8.4). The first three are mandatory and in this order: chassis id, port id, time to live; a
TTL of 0 makes it a shutdown LLDPDU. The system name, if there is one, is what people call the
switch. `lldpctl -f json` of lldpd says the same and is preferred where it runs.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ETHERTYPE = 0x88CC
MULTICAST = bytes.fromhex("0180c200000e")
"""Nearest bridge: never forwarded, so what comes is of the switch at the other end of the cable."""

_END, _CHASSIS, _PORT, _TTL, _SYSTEM_NAME = 0, 1, 2, 3, 5
_MAC = {_CHASSIS: 4, _PORT: 3}
_NETWORK = {_CHASSIS: 5, _PORT: 4}
"""Subtypes by TLV (tables 8-2 and 8-3)."""
_MOST_TEXT = 255
_OF_MANY = frozenset(
    ("localhost", "sonic", "cumulus", "switch", "router", "os10", "ubuntu", "debian", "linux")
)
"""System names that switches have as they come, so that several in a fabric have one."""


class LldpError(ValueError):
    """Not an LLDP frame, or not lldpctl's JSON; the text says why."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of one link."""

    chassis: str
    port: str
    ttl_s: int
    """0: of a shutdown LLDPDU."""
    name: str = ""
    """System name; empty: it has none."""

    @property
    def switch(self) -> str:
        """What to call it: its chassis id where it has no name, or one that many switches have.

        Else two switches would be one leaf, and be blamed for each other. The chassis id is not
        used otherwise: some switches send another one on each port.
        """
        usual = self.name.lower().partition(".")[0] in _OF_MANY
        return self.chassis if usual else self.name or self.chassis


def parse_frame(frame: bytes) -> Neighbour:
    """The neighbour that sent an Ethernet frame (with or without one 802.1Q tag, no FCS).

    Raises:
        LldpError: the frame is none of LLDP, or is mangled.
    """
    at = 12
    if frame[at : at + 2] == b"\x81\x00":
        at += 4
    if frame[at : at + 2] != ETHERTYPE.to_bytes(2, "big"):
        raise LldpError("not of ethertype 0x88cc")
    tlvs = list(_tlvs(frame[at + 2 :]))
    if [kind for kind, _ in tlvs[:3]] != [_CHASSIS, _PORT, _TTL]:
        raise LldpError("the first three TLVs are not chassis id, port id and time to live")
    if len(tlvs[2][1]) < 2:
        raise LldpError("time to live: 2 bytes are needed")
    names = [_text(value) for kind, value in tlvs[3:] if kind == _SYSTEM_NAME]
    return Neighbour(
        _identity(_CHASSIS, tlvs[0][1]),
        _identity(_PORT, tlvs[1][1]),
        int.from_bytes(tlvs[2][1][:2], "big"),
        names[0] if names else "",
    )


def parse_lldpctl(text: str | bytes) -> dict[str, Neighbour]:
    """Netdev → neighbour, from ``lldpctl -f json``.

    lldpd writes an object where there is one of a thing, and a list where there are several; of
    several neighbours on one interface the first counts.

    Raises:
        LldpError: not such a document.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LldpError(f"not JSON: {error}") from error
    lldp = document.get("lldp") if isinstance(document, dict) else None
    if not isinstance(lldp, dict):
        raise LldpError("no object lldp")
    out: dict[str, Neighbour] = {}
    for netdev, entry in _named(lldp.get("interface")):
        chassis, port = entry.get("chassis"), entry.get("port")
        if not isinstance(chassis, dict) or not isinstance(port, dict):
            continue
        name = "" if "id" in chassis else next(iter(chassis), "")
        inner = chassis if "id" in chassis else chassis.get(name)
        identity = inner.get("id") if isinstance(inner, dict) else None
        chassis_id, port_id = _value(identity), _value(port.get("id"))
        if chassis_id and port_id:
            ttl = _value(port.get("ttl"))
            seconds = int(ttl) if ttl.isascii() and ttl.isdigit() and len(ttl) < 6 else 120
            known = _text(name.encode()) if isinstance(name, str) else ""
            out.setdefault(netdev, Neighbour(chassis_id, port_id, seconds, known))
    return out


def _named(interfaces: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ANN401
    """Interfaces as lldpd writes them: ``{"eth0": {…}}``, or a list of such."""
    for group in interfaces if isinstance(interfaces, list) else [interfaces]:
        for netdev, entries in group.items() if isinstance(group, dict) else ():
            for entry in entries if isinstance(entries, list) else [entries]:
                if isinstance(entry, dict):
                    yield netdev, entry


def _value(identity: Any) -> str:  # noqa: ANN401
    if isinstance(identity, list):
        identity = identity[0] if identity else None
    if isinstance(identity, dict):
        identity = identity.get("value")
    return _text(identity.encode()) if isinstance(identity, str) else ""


def _tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 2 <= len(data):
        head = int.from_bytes(data[at : at + 2], "big")
        kind, length = head >> 9, head & 0x1FF
        at += 2
        if kind == _END:
            return
        if at + length > len(data):
            raise LldpError("a TLV is longer than the frame")
        yield kind, data[at : at + length]
        at += length


def _identity(kind: int, value: bytes) -> str:
    if len(value) < 2:
        raise LldpError("an id: a subtype and at least one byte are needed")
    subtype, body = value[0], value[1:]
    if subtype == _MAC[kind] and len(body) == 6:
        return body.hex(":")
    if subtype == _NETWORK[kind] and body[0] in (1, 2) and len(body) == (5 if body[0] == 1 else 17):
        return str(ipaddress.ip_address(body[1:]))
    text = _text(body)
    if not text:
        raise LldpError("an id is empty")
    return text


def _text(value: bytes) -> str:
    """Printable text, however it came: it goes to terminals and files."""
    text = value.decode("utf-8", "replace")[:_MOST_TEXT]
    return "".join(c if c.isprintable() else "?" for c in text).strip()
