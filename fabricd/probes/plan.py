"""From configuration and addresses to what the prober is asked to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fabricd.config.loader import Config
from fabricd.config.tables import PeerTable
from fabricd.detect.locate import Port, Topology
from fabricd.detect.mesh import PathSpec, train_rate
from fabricd.links.ibports import Port as VerbsPort
from fabricd.probes import layout
from fabricd.probes.client import ProbeConfig, ProbeLink, ProbePath, ProbeRdma, host_id
from fabricd.probes.peer_index import PeerIndex

UNKNOWN_ADDRESS = "0.0.0.0"  # noqa: S104 - a link that has no address yet: carrier only

AddressOf = Callable[[str], str | None]


def link_addresses(config: Config, address_of: AddressOf) -> list[str | None]:
    """The address of each configured link: as configured, or the device's own."""
    return [
        str(table.address) if table.address is not None else address_of(table.netdev)
        for table in config.links
    ]


def with_peers(config: Config, discovered: tuple[PeerTable, ...]) -> Config:
    """The configuration with the hosts that were found over the broker, unless it names some."""
    if config.broker is None or config.peers or not discovered:
        return config
    return config.model_copy(update={"peers": discovered})


def is_known(addresses: Sequence[str | None], *, loaded: bool) -> bool:
    """Whether the addresses may be told to the prober.

    Before the kernel was asked (``loaded``) a missing one says nothing: a prober that took it for
    "none" would have no answer for peers that probe that address already, and refuse them.
    """
    return loaded or None not in addresses


def host_names(config: Config, peers: PeerIndex) -> dict[int, str]:
    """Number on the wire → name, of all hosts that are known; ``peers``: of ``config``."""
    return {host_id(config.host.name): config.host.name, **peers.names}


def topology(
    config: Config, peers: PeerIndex, switches: Mapping[str, str] | None = None
) -> Topology:
    """Which leaf each port is on: as configured, else what LLDP says.

    Args:
        config: its map comes first.
        peers: of ``config``.
        switches: netdev → the switch at the other end of its cable. The others' ports on the same
            rail are put on the same switch: rails are built so, and LLDP does not see further.
    """
    own = frozenset(table.rail for table in config.links)
    rails: dict[str, frozenset[int]] = {config.host.name: own, **peers.rails}
    leaf_of: dict[Port, str] = {}
    named: dict[Port, str] = {}
    for table in config.links:
        if switches and table.netdev in switches:
            at = switches[table.netdev]
            leaf_of |= {(name, table.rail): at for name, had in rails.items() if table.rail in had}
    for leaf in config.topology.leaves:
        for port in leaf.ports:
            host, _, number = port.rpartition("/")
            rail = int(number)
            if host == "*":
                leaf_of |= {(name, rail): leaf.name for name, had in rails.items() if rail in had}
            else:
                named[host, rail] = leaf.name
    return Topology(leaf_of | named)


def rdma_ports(
    config: Config,
    addresses: Sequence[str | None],
    specs: Sequence[PathSpec],
    ports: Mapping[str, Sequence[VerbsPort]],
) -> tuple[ProbeRdma, ...]:
    """Where RDMA is probed: links with an address, a path and a verbs port.

    Args:
        config: with ``[probe] rdma``.
        addresses: of its links.
        specs: the UDP paths.
        ports: netdev → the verbs ports behind it. Of several (a bond) the first is probed.

    Returns:
        None where the ring has no room for all of them (`rdma_note`).
    """
    found = _rdma_wanted(config, addresses, specs, ports)
    return () if _no_room(config, specs, found) else found


def rdma_note(
    config: Config,
    addresses: Sequence[str | None],
    specs: Sequence[PathSpec],
    ports: Mapping[str, Sequence[VerbsPort]],
) -> str:
    """Why `rdma_ports`, of the same arguments, gives none though there are ports; may be empty."""
    return _no_room(config, specs, _rdma_wanted(config, addresses, specs, ports))


def _rdma_wanted(
    config: Config,
    addresses: Sequence[str | None],
    specs: Sequence[PathSpec],
    ports: Mapping[str, Sequence[VerbsPort]],
) -> tuple[ProbeRdma, ...]:
    if config.probe.rdma == "off":
        return ()
    probed = {spec.link for spec in specs}
    return tuple(
        ProbeRdma(index, ports[table.netdev][0].device, ports[table.netdev][0].number)
        for index, table in enumerate(config.links)
        if addresses[index] is not None and index in probed and ports.get(table.netdev)
    )


def _no_room(config: Config, specs: Sequence[PathSpec], found: Sequence[ProbeRdma]) -> str:
    """Why the ring does not hold them; empty: it does."""
    links = len(config.links) + len(found)
    paths = len(specs) + sum(spec.link in {x.link for x in found} for spec in specs)
    if links <= layout.MAX_LINKS and paths <= layout.MAX_PATHS:
        return ""
    return (
        f"with RDMA there are {links} links and {paths} paths to probe, and the prober has room "
        f"for {layout.MAX_LINKS} and {layout.MAX_PATHS}: [probe] peers_per_rail makes fewer"
    )


def probe_config(
    config: Config,
    addresses: Sequence[str | None],
    specs: Sequence[PathSpec],
    rdma: Sequence[ProbeRdma] = (),
) -> ProbeConfig:
    """The prober's configuration; path indices are those of ``specs``."""
    probe, hardware = config.probe, config.clock.hardware_stamps == "auto"
    return ProbeConfig(
        host_id(config.host.name),
        [
            ProbeLink(
                index, table.netdev, address or UNKNOWN_ADDRESS, probe.port, hardware, table.rail
            )
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
                peer_rail=s.peer_rail,
            )
            for index, s in enumerate(specs)
        ],
        link_interval_us=probe.link_interval_ms * 1000,
        misses=probe.misses,
        clock_train_hz=train_rate(probe.clock_train_hz, len(config.links), len(config.peers)),
        dscp=probe.dscp,
        synchronized=probe.synchronized,
        rdma=rdma,
    )
