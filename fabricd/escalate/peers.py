"""Which hosts are to be probed, by their documents. Pure, but for ``load`` and ``load_proven``.

A host joins by its document. It leaves when its document is cleared, or `LEAVE_NS` after a goodbye
without a new birth, never because it is silent: else nobody could say that it is lost. One that is
known from an earlier fabricd, and has neither a document at the broker nor ever answered, leaves
`FORGET_NS` after the documents of others came.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from fabricd.config.addresses import Address, address_text
from fabricd.config.peer_checks import same_number
from fabricd.config.tables import MAX_PEERS, PeerAddressTable, PeerTable
from fabricd.config.values import Network
from fabricd.escalate.address_owners import AddressOwners, Conflict
from fabricd.escalate.networks import may_be_probed
from fabricd.probes.wire_id import host_id
from telemetry.messages.documents import HostDocument
from telemetry.messages.envelope import BadMessageError
from telemetry.service import durable

PEERS_FILE = "peers.json"
"""In the state directory."""
LEAVE_NS = 60 * 10**9
"""A restart of fabricd is over by then. The prober goes on meanwhile."""
FORGET_NS = 60 * 10**9
"""A broker has sent all its documents by then."""
MAX_FILE = 32 << 20
Peers = tuple[PeerTable, ...]
_ADAPTER = TypeAdapter(Peers)


class PeerDirectory:
    """The other hosts of the fabric.

    Attributes:
        conflicts: hosts that name the same addresses, as of the last `peers`.
        outside: addresses of no network that may be probed, in words, likewise.
    """

    def __init__(
        self,
        me: str,
        probe_port: int,
        known: Peers = (),
        networks: tuple[Network, ...] = (),
        proven: Mapping[Address, str] | None = None,
    ) -> None:
        """Prepare.

        Args:
            me: this host.
            probe_port: the port at which all hosts probe.
            known: as an earlier fabricd had it; they stay until they leave.
            networks: what may be probed; see `may_be_probed`.
            proven: address → the host that had answered there, as an earlier fabricd knew.
        """
        self.conflicts: tuple[Conflict, ...] = ()
        self.outside: tuple[str, ...] = ()
        self._me, self._port, self._networks = me, probe_port, networks
        self._addresses = AddressOwners(
            {one.address: peer.host for peer in known for one in peer.addresses}, proven or {}
        )
        self._own: frozenset[Address] = frozenset()
        self._hosts = {peer.host: peer for peer in known}
        self._unconfirmed = set(self._hosts)
        """Of ``known``: neither a document nor an answer of theirs has come yet."""
        self._documents_ns: int | None = None
        """When `leave` was first asked with documents of others at hand."""
        self._documents = False
        self._answers: dict[tuple[int, str], tuple[Address, str]] = {}
        """(Number on the wire, address as text) → what an answer from there says."""
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
        self._documents = True
        self._unconfirmed.discard(host)
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

    def answered(self, answers: Iterable[tuple[int, str]]) -> bool:
        """Take from where authenticated answers came; True: one is the first from there.

        Args:
            answers: number of the host on the wire, address.
        """
        new = False
        for answer in answers:
            if (found := self._answers.pop(answer, None)) is not None:
                address, host = found
                self._unconfirmed.discard(host)
                new |= self._addresses.answered(address, host)
        return new

    def leave(self, now: int) -> bool:
        """Look who leaves, and whose turns end, by ``now``; True: what is probed changes."""
        gone = {host for host, at in self._goodbyes.items() if now - at >= LEAVE_NS}
        before, self._gone = self._gone, gone
        changed = gone != before or self._addresses.turn_ends(now)
        if self._documents and self._documents_ns is None:
            self._documents_ns = now
        if self._documents_ns is not None and now - self._documents_ns >= FORGET_NS:
            for host in self._unconfirmed:
                changed |= self._hosts.pop(host, None) is not None
            self._unconfirmed = set()
        return changed

    def peers(self, now: int) -> Peers:
        """All hosts that are to be probed, by name; ``now``: CLOCK_MONOTONIC ns.

        Of an address that several hosts name see `AddressOwners`.
        """
        outside = []
        claims: dict[Address, list[str]] = {}
        named: dict[str, list[PeerAddressTable]] = {}
        for host, peer in sorted(self._hosts.items()):
            if host in self._gone:
                continue
            named[host] = []
            for one in peer.addresses:
                if may_be_probed(one.address, self._networks, self._own):
                    named[host].append(one)
                    hosts = claims.setdefault(one.address, [])
                    if host not in hosts:
                        hosts.append(host)
                else:
                    outside.append(f"{one.address} of {host}")
        owners = self._addresses.update(claims, now)
        out = []
        self._answers = {}
        for host, addresses in named.items():
            number = host_id(host)
            own = []
            for one in addresses:
                if one.address not in self._own and owners[one.address] == host:
                    own.append(one)
                    self._answers[number, address_text(one.address)] = one.address, host
            if own:
                out.append(self._hosts[host].model_copy(update={"addresses": tuple(own)}))
        self.conflicts = self._addresses.conflicts(self._me, self._own)
        self.outside = tuple(outside)
        self._probed = {peer.host for peer in out}
        return tuple(out)

    def open(self) -> frozenset[str]:
        """Addresses that several hosts name, and at which nobody has answered, as text."""
        return frozenset(map(address_text, self._addresses.open()))

    def stored(self, peers: Peers) -> str:
        """For the file that `load` and `load_proven` read: ``peers`` without open addresses."""
        unclear = self._addresses.open()
        kept = []
        for peer in peers:
            clear = tuple(one for one in peer.addresses if one.address not in unclear)
            if clear:
                kept.append(peer.model_copy(update={"addresses": clear}))
        return dump(tuple(kept), self._addresses.proven)


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


def dump(peers: Peers, proven: Mapping[Address, str]) -> str:
    """For `load` and `load_proven`."""
    return json.dumps(
        {
            "version": 1,
            "peers": [peer.model_dump(mode="json") for peer in peers],
            "proven": {address_text(address): host for address, host in proven.items()},
        }
    )


def load(path: Path) -> Peers:
    """The peers that an earlier fabricd knew; none, and that is logged, if the file is unusable."""
    try:
        return _ADAPTER.validate_python(_read(path).get("peers", ()))
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        structlog.get_logger().warning(
            "known peers not read", file=str(path), error=str(error)[:300]
        )
        return ()


def load_proven(path: Path) -> dict[Address, str]:
    """Address → the host that had answered there; {} where the file is unusable, or older."""
    try:
        proven = _read(path).get("proven", {})
        if not isinstance(proven, dict):
            return {}
        return {ipaddress.ip_address(at): str(host) for at, host in proven.items()}
    except (OSError, ValueError, RecursionError):
        return {}


def _read(path: Path) -> dict[str, Any]:
    """Raises ``OSError``, ``ValueError`` and ``RecursionError``."""
    data = durable.read(path, MAX_FILE)
    if data is None:
        return {}
    document: Any = json.loads(data)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise ValueError("not a file of this version")
    return document
