"""Which hosts are to be probed, by their documents. Pure, but for ``load``.

A host joins by its document. It leaves when its document is cleared, or `LEAVE_NS` after a goodbye
without a new birth, never because it is silent: else nobody could say that it is lost.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from fabricd.config.addresses import Address
from fabricd.config.peer_checks import same_number
from fabricd.config.tables import MAX_PEERS, PeerAddressTable, PeerTable
from fabricd.config.values import Network
from fabricd.escalate.networks import may_be_probed
from fabricd.probes.wire_id import host_id
from telemetry.messages.documents import HostDocument
from telemetry.messages.envelope import BadMessageError
from telemetry.service import durable

PEERS_FILE = "peers.json"
"""In the state directory."""
LEAVE_NS = 60 * 10**9
"""A restart of fabricd is over by then. The prober goes on meanwhile."""
MAX_FILE = 32 << 20
Peers = tuple[PeerTable, ...]
_ADAPTER = TypeAdapter(Peers)


class PeerDirectory:
    """The other hosts of the fabric.

    Attributes:
        doubles: addresses that two hosts claim, in words, as of the last `peers`.
        outside: addresses of no network that may be probed, likewise.
    """

    def __init__(
        self,
        me: str,
        probe_port: int,
        known: Peers = (),
        networks: tuple[Network, ...] = (),
    ) -> None:
        """Prepare.

        Args:
            me: this host.
            probe_port: the port at which all hosts probe.
            known: as an earlier fabricd had it; they stay until they leave.
            networks: what may be probed; see `may_be_probed`.
        """
        self.doubles: tuple[str, ...] = ()
        self.outside: tuple[str, ...] = ()
        self._me, self._port, self._networks = me, probe_port, networks
        self._first: dict[Address, str] = {
            one.address: peer.host for peer in known for one in peer.addresses
        }
        """Address → the host that was the first to have it, and has it still."""
        self._own: frozenset[Address] = frozenset()
        self._hosts = {peer.host: peer for peer in known}
        self._probed = set(self._hosts)
        """Hosts that `peers` named last."""
        self._goodbyes: dict[str, int] = {}
        """Hosts that said goodbye, and when; of one that we do not probe, long ago."""
        self._gone: set[str] = set()

    def document(self, host: str, document: HostDocument) -> bool:
        """Take a host's document; True: what is probed may be something else by that.

        Raises:
            BadMessageError: it cannot be probed as it is; what is known of it stays.
        """
        if host == self._me:
            before, self._own = self._own, _addresses(document)
            return self._own != before
        if document.name != host:
            raise BadMessageError(f"name {document.name} in the document of {host}")
        if document.probe_port != self._port:
            raise BadMessageError(f"{host} probes at port {document.probe_port}, not {self._port}")
        if host not in self._hosts and len(self._hosts) >= MAX_PEERS:
            raise BadMessageError(f"{host}: {MAX_PEERS} hosts are probed already")
        if (other := self._with_number(host)) is not None:
            raise BadMessageError(f"{same_number(host, other)}: {host} is not probed")
        peer = _peer(document)
        if peer is None:
            return False  # It has no address yet.
        changed = self._hosts.get(host) != peer
        self._hosts[host] = peer
        return changed

    def _with_number(self, host: str) -> str | None:
        """Another host whose probes have the same number; None: there is none."""
        if host in self._hosts:
            return None
        number = host_id(host)
        return next((one for one in (self._me, *self._hosts) if host_id(one) == number), None)

    def status(self, host: str, *, online: bool, intended: bool, now: int) -> None:
        """Take a host's birth, goodbye or last will; ``now``: CLOCK_MONOTONIC ns."""
        if online or not intended:
            self._goodbyes.pop(host, None)
        elif host != self._me:
            self._goodbyes.setdefault(host, now if host in self._probed else now - LEAVE_NS)

    def cleared(self, host: str) -> bool:
        """A host's document was cleared; True: it was probed until now."""
        return self._hosts.pop(host, None) is not None

    def leave(self, now: int) -> bool:
        """Look whose goodbye is old enough by ``now``; True: other hosts than before."""
        gone = {host for host, at in self._goodbyes.items() if now - at >= LEAVE_NS}
        before, self._gone = self._gone, gone
        return gone != before

    def peers(self) -> Peers:
        """All hosts that are to be probed, by name.

        An address is the host's that had it first, as long as it has it; of hosts that we learn of
        at once, the first one's by name.
        """
        self._first = {
            address: host
            for address, host in self._first.items()
            if host not in self._gone
            and host in self._hosts
            and any(one.address == address for one in self._hosts[host].addresses)
        }
        out, doubles, outside = [], [], []
        for host, peer in sorted(self._hosts.items()):
            if host in self._gone:
                continue
            own = []
            for one in peer.addresses:
                if not may_be_probed(one.address, self._networks, self._own):
                    outside.append(f"{one.address} of {host}")
                elif one.address in self._own:
                    doubles.append(f"{one.address} of {host} is ours, too")
                elif (first := self._first.setdefault(one.address, host)) == host:
                    own.append(one)
                else:
                    doubles.append(f"{one.address} of {host} is {first}'s, too")
            if own:
                out.append(peer.model_copy(update={"addresses": tuple(own)}))
        self.doubles, self.outside = tuple(doubles), tuple(outside)
        self._probed = {peer.host for peer in out}
        return tuple(out)


def _addresses(document: HostDocument) -> frozenset[Address]:
    """All of them. Raises ``BadMessageError``: one is none."""
    try:
        return frozenset(
            ipaddress.ip_address(text) for link in document.links for text in link.addresses
        )
    except ValueError as error:
        raise BadMessageError(f"{document.name}: {str(error)[:80]} is no unicast address") from None


def _peer(document: HostDocument) -> PeerTable | None:
    """The addresses at which a host is probed: of each rail one of each family."""
    found: dict[tuple[int, int], PeerAddressTable] = {}
    for link in document.links:
        for text in link.addresses:
            try:
                address = ipaddress.ip_address(text)
                table = PeerAddressTable.model_validate({"rail": link.rail, "address": text})
            except ValueError:  # pydantic's are some, too
                raise BadMessageError(
                    f"{document.name}: {text:.80} is no unicast address"
                ) from None
            if address.is_loopback or address.is_link_local:
                continue
            found.setdefault((link.rail, address.version), table)
    if not found:
        return None
    return PeerTable(host=document.name, addresses=tuple(found.values()))


def dump(peers: Peers) -> str:
    """For `load`."""
    return json.dumps({"version": 1, "peers": [peer.model_dump(mode="json") for peer in peers]})


def load(path: Path) -> Peers:
    """The peers that an earlier fabricd knew; none, and that is logged, if the file is unusable."""
    try:
        data = durable.read(path, MAX_FILE)
        if data is None:
            return ()
        document: Any = json.loads(data)
        if not isinstance(document, dict) or document.get("version") != 1:
            raise ValueError("not a file of this version")
        return _ADAPTER.validate_python(document.get("peers"))
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        structlog.get_logger().warning(
            "known peers not read", file=str(path), error=str(error)[:300]
        )
        return ()
