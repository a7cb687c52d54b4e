"""Which addresses may be probed for a document's sake: no host aims traffic elsewhere. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from fabricd.config.addresses import Address
from fabricd.config.values import Network

PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
                               "fc00::/7"))
)  # fmt: skip
"""RFC 1918, RFC 6598, RFC 4193."""
AROUND = {4: 16, 6: 48}
"""Length of the network around each of one's own public addresses."""


def may_be_probed(
    address: Address, networks: Collection[Network], own: Collection[Address]
) -> bool:
    """Whether probes may go to an address that a document names.

    ``networks``: what the configuration allows; empty: private addresses, and what is around one of
    this host's ``own``.
    """
    if networks:
        return any(address in one for one in networks)
    return any(address in one for one in PRIVATE) or any(address in _around(one) for one in own)


def _around(address: Address) -> Network:
    return ipaddress.ip_network((address, AROUND[address.version]), strict=False)
