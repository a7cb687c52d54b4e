"""From configuration and addresses to what the prober is asked to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fabricd.config import Config
from fabricd.detect.mesh import Node, PathSpec, choose
from fabricd.probes.client import ProbeConfig, ProbeLink, ProbePath, host_id

UNKNOWN_ADDRESS = "0.0.0.0"  # noqa: S104 - a link that has no address yet: carrier only

AddressOf = Callable[[str], str | None]


def link_addresses(config: Config, address_of: AddressOf) -> list[str | None]:
    """The address of each configured link: as configured, or the device's own."""
    return [
        str(table.address) if table.address is not None else address_of(table.netdev)
        for table in config.links
    ]


def is_known(addresses: Sequence[str | None], *, loaded: bool) -> bool:
    """Whether the addresses may be told to the prober.

    Before the kernel was asked (``loaded``) a missing one says nothing: a prober that took it for
    "none" would have no answer for peers that probe that address already, and refuse them.
    """
    return loaded or None not in addresses


def paths(config: Config, addresses: Sequence[str | None]) -> list[PathSpec]:
    """The paths to probe over the links whose address is known."""
    peers = []
    for peer in config.peers:
        rails: dict[int, tuple[str, ...]] = {}
        for entry in peer.addresses:
            rails[entry.rail] = (*rails.get(entry.rail, ()), str(entry.address))
        peers.append(Node(peer.host, rails))
    links = [
        (index, table.rail, address)
        for index, (table, address) in enumerate(zip(config.links, addresses, strict=True))
        if address is not None
    ]
    return choose(
        config.host.name,
        links,
        peers,
        per_rail=config.probe.peers_per_rail,
        cross_rail=config.probe.cross_rail_peers,
    )


def probe_config(
    config: Config, addresses: Sequence[str | None], specs: Sequence[PathSpec]
) -> ProbeConfig:
    """The prober's configuration; path indices are those of ``specs``."""
    probe = config.probe
    return ProbeConfig(
        host_id(config.host.name),
        [
            ProbeLink(index, table.netdev, address or UNKNOWN_ADDRESS, probe.port)
            for index, (table, address) in enumerate(zip(config.links, addresses, strict=True))
        ],
        [
            ProbePath(
                index,
                s.link,
                s.address,
                probe.port,
                host_id(s.peer),
                s.clock,
                extra=s.peer_rail != config.links[s.link].rail,
            )
            for index, s in enumerate(specs)
        ],
        link_interval_us=probe.link_interval_ms * 1000,
        misses=probe.misses,
        clock_train_hz=probe.clock_train_hz,
    )
