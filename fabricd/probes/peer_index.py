"""What is asked of a list of peers again and again, computed once for each list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabricd.config.addresses import address_text
from fabricd.config.tables import Config, PeerTable
from fabricd.detect.mesh import Mesh, Node, PathSpec
from fabricd.probes.client import host_id


class PeerIndex:
    """The peers of one configuration.

    A configuration of 2,048 peers with 8 addresses each costs a quarter of a second here. A
    reload makes its index in a thread, and the event loop gets it ready for use. One thread at a
    time may use it.

    Attributes:
        peers: the list.
        rails: host → the rails on which it has an address.
        rails_in_use: those of all peers.
        names: number on the wire → host.
    """

    def __init__(self, peers: tuple[PeerTable, ...]) -> None:
        self.peers = peers
        self._nodes = [_node(peer) for peer in peers]
        self.rails: Mapping[str, frozenset[int]] = {
            node.host: frozenset(node.rails) for node in self._nodes
        }
        self.rails_in_use = frozenset[int]().union(*self.rails.values())
        self.names: Mapping[int, str] = {host_id(peer.host): peer.host for peer in peers}
        self._mesh: Mesh | None = None
        self._rules: tuple[str, int, int] | None = None

    def paths(self, config: Config, addresses: Sequence[str | None]) -> list[PathSpec]:
        """The paths to probe from links with these addresses; None: the link has no address."""
        probe = config.probe
        rules = (config.host.name, probe.peers_per_rail, probe.cross_rail_peers)
        if self._mesh is None or rules != self._rules:
            name, per_rail, cross_rail = self._rules = rules
            self._mesh = Mesh(name, self._nodes, per_rail=per_rail, cross_rail=cross_rail)
        return self._mesh.choose(
            [
                (index, table.rail, address)
                for index, (table, address) in enumerate(zip(config.links, addresses, strict=True))
                if address is not None
            ]
        )


def _node(peer: PeerTable) -> Node:
    rails: dict[int, tuple[str, ...]] = {}
    for entry in peer.addresses:
        rails[entry.rail] = (*rails.get(entry.rail, ()), address_text(entry.address))
    return Node(peer.host, rails)
