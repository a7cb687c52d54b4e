"""What is asked of a list of peers again and again, computed once for each list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabricd.config.addresses import address_text
from fabricd.config.tables import Config, PeerTable
from fabricd.detect.mesh import Mesh, Node, PathSpec
from fabricd.probes.client import host_id

_LINK_LOCAL = ("169.254.", "fe8", "fe9", "fea", "feb")
"""How the text of a link-local address begins."""


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
        self._links: list[tuple[int, int, str]] | None = None
        self._chosen: list[PathSpec] = []

    def paths(self, config: Config, addresses: Sequence[str | None]) -> list[PathSpec]:
        """The paths to probe from links with these addresses; None: the link has no address."""
        probe = config.probe
        rules = (config.host.name, probe.peers_per_rail, probe.cross_rail_peers)
        if self._mesh is None or rules != self._rules:
            name, per_rail, cross_rail = self._rules = rules
            self._mesh = Mesh(name, self._nodes, per_rail=per_rail, cross_rail=cross_rail)
            self._links = None
        links = [
            (index, table.rail, address)
            for index, (table, address) in enumerate(zip(config.links, addresses, strict=True))
            if address is not None
        ]
        if links != self._links:
            self._chosen, self._links = _on_the_way(self._mesh.choose(links), links), links
        return list(self._chosen)


def _on_the_way(specs: list[PathSpec], links: list[tuple[int, int, str]]) -> list[PathSpec]:
    """Those paths whose packets go to the peer over their link.

    Where both hosts have an address (a bridge of containers), packets to it stay here. A
    link-local address is of the peer's link on the same rail.
    """
    by_link = {index: (rail, address) for index, rail, address in links}
    own = {address for _, _, address in links}

    def goes(spec: PathSpec) -> bool:
        if not spec.address.startswith(_LINK_LOCAL):
            return spec.address not in own
        rail, address = by_link[spec.link]
        return spec.peer_rail == rail and spec.address != address

    return [spec for spec in specs if goes(spec)]


def _node(peer: PeerTable) -> Node:
    rails: dict[int, tuple[str, ...]] = {}
    for entry in peer.addresses:
        rails[entry.rail] = (*rails.get(entry.rail, ()), address_text(entry.address))
    return Node(peer.host, rails)
