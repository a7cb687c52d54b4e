"""Chooses what is probed: paths over the links' addresses, and RDMA over their verbs ports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog

from fabricd.engine import Engine
from fabricd.links.ibports import Port
from fabricd.links.inventory import Inventory
from fabricd.probes import plan
from fabricd.runtime.detectors import Detectors
from fabricd.runtime.prober import Prober
from fabricd.runtime.settings import HostSettings


class ProbePlanner:
    """Gives the engine, the prober and the detectors the same paths at the same time.

    Attributes:
        verbs_ports: by netdev, the verbs ports behind it.
        rdma_note: why RDMA is probed nowhere though there are ports; may be empty.
    """

    def __init__(
        self,
        settings: HostSettings,
        inventory: Inventory,
        engine: Engine,
        prober: Prober,
        detectors: Detectors,
    ) -> None:
        """Choose the first paths, too."""
        self.verbs_ports: Mapping[str, Sequence[Port]] = {}
        self.rdma_note = ""
        self._settings, self._inventory = settings, inventory
        self._engine, self._prober, self._detectors = engine, prober, detectors
        self._log = structlog.get_logger()
        self._noted: dict[str, str] = {}
        self._known_addresses = self.addresses()
        self._say_notes()
        self.plan()

    def addresses(self) -> list[str | None]:
        """Source address of each configured link's probes; None: the link has no address."""
        return plan.link_addresses(self._settings.config, self._inventory.address_of)

    def devices(self) -> Collection[str] | None:
        """Names of all network devices; None: the kernel was not asked yet."""
        return self._inventory.devices if self._inventory.loaded else None

    def address_notes(self) -> dict[str, str]:
        """Netdev → why it has no usable address, or which others; none for configured ones."""
        notes = {
            table.netdev: self._inventory.choice_of(table.netdev).note
            for table in self._settings.config.links
            if table.address is None
        }
        return {netdev: note for netdev, note in notes.items() if note}

    def plan(self) -> None:
        """Choose the paths anew."""
        config, addresses = self._settings.config, self.addresses()
        specs = self._settings.peers.paths(config, addresses)
        rdma = plan.rdma_ports(config, addresses, specs, self.verbs_ports)
        before = self.rdma_note
        self.rdma_note = plan.rdma_note(config, addresses, specs, self.verbs_ports)
        if self.rdma_note and self.rdma_note != before:
            self._log.warning("RDMA is not probed", reason=self.rdma_note)
        engine, prober, detectors = self._engine, self._prober, self._detectors
        engine.configure(config, specs, [port.link for port in rdma])
        detectors.delay.configure(engine)
        if plan.is_known(addresses, loaded=self._inventory.loaded):
            prober.feed.configure(plan.probe_config(config, addresses, specs, rdma))
        prober.tables.forget()
        prober.counts.renumbered()
        detectors.probing.configure()
        keys = [(p.netdev, p.spec.peer, p.spec.peer_rail, p.spec.address) for p in engine.paths]
        detectors.losses.configure(self._settings.netdevs, keys)
        detectors.localization.configure(config, self._settings.peers)

    def _say_notes(self) -> None:
        notes = self.address_notes() if self._inventory.loaded else {}
        for netdev, note in notes.items():
            if self._noted.get(netdev) != note:
                text = f"{netdev} {note}; the key address of [[links]] chooses"
                several = self._inventory.address_of(netdev) is not None
                say = self._log.warning if several else self._log.info  # tentative at first
                say("address of a link", link=netdev, reason=text)
        self._noted = notes

    def follow_addresses(self) -> bool:
        """Plan anew if the links' addresses changed, or nothing was planned; returns whether."""
        before, self._known_addresses = self._known_addresses, self.addresses()
        self._say_notes()
        if self._known_addresses == before and self._prober.feed.configured:
            return False
        self.plan()
        return True

    def ports_found(self, ports: Mapping[str, Sequence[Port]]) -> None:
        """Which verbs ports stand behind the links, by netdev: RDMA is probed there."""
        if ports != self.verbs_ports:
            self.verbs_ports = ports
            self.plan()
