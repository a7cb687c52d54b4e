"""Link and address messages of rtnetlink (net/core/rtnetlink.c, net/ipv4/devinet.c). Pure.

In the form of pyroute2's, which `Inventory` takes, but only what that looks at: pyroute2 decodes
all of a link's fifty attributes, in 1 to 3 ms on the daemon's one thread, and while links flap the
kernel tells of each change several times.
"""

from __future__ import annotations

import struct
from typing import Any

from telemetry.counters.nlattr import decode, layout, messages

LINK = {16: "RTM_NEWLINK", 17: "RTM_DELLINK"}
ADDRESS = {20: "RTM_NEWADDR", 21: "RTM_DELADDR"}
_IFINFO = struct.Struct("=BxHiII")  # family, type, index, flags, change
_IFADDR = struct.Struct("=BBBBi")  # family, prefix length, flags, scope, index
_AF_UNSPEC = 0


class _LinkMessage:
    """As pyroute2 declares them."""

    nla_map = (
        (1, "IFLA_ADDRESS", "cdata"),
        (3, "IFLA_IFNAME", "asciiz"),
        (4, "IFLA_MTU", "uint32"),
        (33, "IFLA_CARRIER", "uint8"),
        (47, "IFLA_CARRIER_UP_COUNT", "uint32"),
        (48, "IFLA_CARRIER_DOWN_COUNT", "uint32"),
    )


class _AddressMessage:
    nla_map = (
        (1, "IFA_ADDRESS", "cdata"),
        (2, "IFA_LOCAL", "cdata"),
        (8, "IFA_FLAGS", "uint32"),
    )


_LINK = layout(_LinkMessage)
_ADDRESS = layout(_AddressMessage)


def parse(data: bytes) -> list[dict[str, Any]]:
    """The link and address messages of one datagram; others are left out.

    Raises:
        telemetry.counters.types.CounterError: a length does not fit.
        ValueError: a message is shorter than its kind.
    """
    out = []
    for message in messages(data):
        payload = message.payload
        if message.type in LINK:
            head, fields = _IFINFO, _LINK
        elif message.type in ADDRESS:
            head, fields = _IFADDR, _ADDRESS
        else:
            continue
        if len(payload) < head.size:
            raise ValueError(f"{len(payload)} bytes of a message of {head.size} at least")
        values = head.unpack_from(payload)
        if message.type in LINK and values[0] != _AF_UNSPEC:
            continue  # what a bridge says of its ports
        attrs = decode(payload[head.size :], fields)
        if message.type in LINK:
            attrs = [(name, value.hex(":") if name == "IFLA_ADDRESS" else value)
                     for name, value in attrs]  # fmt: skip
            out.append({"event": LINK[message.type], "index": values[2], "flags": values[3],
                        "attrs": attrs})  # fmt: skip
        else:
            out.append({"event": ADDRESS[message.type], "index": values[4], "scope": values[3],
                        "flags": values[2], "prefixlen": values[1], "attrs": attrs})  # fmt: skip
    return out
