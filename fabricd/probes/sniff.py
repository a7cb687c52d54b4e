"""The probe packet as a scapy layer: for ``fabricctl sniff``, pcaps and forging packets in tests.

Needs the extra ``fabricd[sniff]``. scapy is GPL-2.0-only: nothing that the daemon imports may
import this module.
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    FlagsField,
    LEIntField,
    LELongField,
    LEShortField,
    LESignedLongField,
    StrFixedLenField,
    XByteField,
    XLEIntField,
    XLELongField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, bind_layers

from fabricd.probes import wire
from fabricd.probes.layout import WIRE_MAGIC, WIRE_SIZE, WIRE_VERSION

_HEX = {"magic", "incarnation", "challenge", "response", "peer_incarnation", "rx_bitmap", "host_id"}
_DEFAULT = {"magic": WIRE_MAGIC, "version": WIRE_VERSION, "size": WIRE_SIZE}


def _field(name: str, code: str) -> Any:  # noqa: ANN401
    default = _DEFAULT.get(name, 0)
    if name == "flags":
        return FlagsField(
            name,
            0,
            8,
            ["train1", "train2", "report", "stalled", "hw", "bye", "roams", "mtu"],
        )
    kinds: dict[str, Any] = {
        "B": XByteField,
        "H": LEShortField,
        "I": XLEIntField if name in _HEX else LEIntField,
        "Q": XLELongField if name in _HEX else LELongField,
        "q": LESignedLongField,
    }
    return kinds[code](name, default)


class Probe(Packet):  # type: ignore[misc]
    """One probe packet; ``sign`` puts the right tag on, by hand any other."""

    name = "Probe"
    fields_desc = [  # noqa: RUF012
        *(_field(name, code) for name, code in wire.FIELDS),
        StrFixedLenField("tag", bytes(wire.TAG_SIZE), wire.TAG_SIZE),
    ]

    def sign(self, key: bytes, source: wire.Endpoint, destination: wire.Endpoint) -> Probe:
        """Sets the tag for this key and these ends; returns itself."""
        body = bytes(self)[: wire.BODY.size]
        self.tag = wire.tag(key, body, source, destination)
        return self

    def genuine(self, key: bytes) -> bool:
        """True if the tag is right for the IP and UDP layers above."""
        udp = self.underlayer
        ip = None if udp is None else udp.underlayer
        if not isinstance(udp, UDP) or not isinstance(ip, IP | IPv6):
            return False
        raw = bytes(self)[:WIRE_SIZE]
        return wire.genuine(raw, key, (ip.src, udp.sport), (ip.dst, udp.dport))


def bind(port: int = 9200) -> None:
    """Have scapy take UDP packets of this port for probes."""
    bind_layers(UDP, Probe, sport=port)
    bind_layers(UDP, Probe, dport=port)
