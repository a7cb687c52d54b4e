"""The configuration in use: that of the files, with the hosts that were found over the broker."""

from __future__ import annotations

from fabricd.config.loader import Config
from fabricd.config.tables import PeerTable
from fabricd.probes import plan
from fabricd.probes.peer_index import PeerIndex


class HostSettings:
    """Owns the configuration of a host. Other parts read it here each time; none keeps a copy."""

    def __init__(self, config: Config, discovered: tuple[PeerTable, ...] = ()) -> None:
        self._discovered = discovered
        self.replace(config)

    @property
    def config(self) -> Config:
        """Valid as a whole, with the peers in use."""
        return self._config

    @property
    def peers(self) -> PeerIndex:
        """The peers in use."""
        return self._peers

    @property
    def netdevs(self) -> list[str]:
        """Netdevs of the configured links, by index."""
        return [link.netdev for link in self._config.links]

    @property
    def discovers(self) -> bool:
        """Hosts to probe are found over the broker: the configuration names none."""
        return self._file.broker is not None and not self._file.peers

    def replace(self, config: Config, peers: PeerIndex | None = None) -> None:
        """Use another valid configuration; the hosts that were found stay.

        Args:
            config: valid as a whole.
            peers: of ``config``, if somebody has made it already.
        """
        self._file = config
        self._config = plan.with_peers(config, self._discovered)
        fits = peers is not None and peers.peers is self._config.peers
        self._peers = peers if peers is not None and fits else PeerIndex(self._config.peers)

    def discover(self, peers: tuple[PeerTable, ...]) -> None:
        """Probe these hosts, where the configuration names none."""
        self._discovered = peers
        self.replace(self._file)
