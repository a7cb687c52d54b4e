"""Checks of ``[[peers]]`` across tables, on the raw document: each host and each address once.

A list that all hosts share has an entry for this host, too. That entry must agree with
``[[links]]``, since the other hosts probe its addresses. A link-local address is one of its rail:
the same one on another rail is another NIC's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fabricd.config.addresses import (
    Address,
    is_link_local,
    parse_address,
    without_zone,
    zone_of,
)
from fabricd.config.files import Origin
from fabricd.probes.wire_id import host_id
from telemetry.service.config_errors import dotted

Path = tuple[str | int, ...]
Found = list[tuple[Path, str]]


def tables(value: object) -> list[tuple[int, dict[str, Any]]]:
    """The tables of a list, with their indices; none when it is no list."""
    if not isinstance(value, list):
        return []
    return [(i, item) for i, item in enumerate(value) if isinstance(item, dict)]


def ip_address(value: object) -> Address | None:
    """The address that a text is, without a zone, or None."""
    try:
        return without_zone(parse_address(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def check(
    raw: dict[str, Any], local_host: str, place: Callable[[Path], Origin], found: Found
) -> None:
    """Add the problems of ``[[peers]]`` to ``found``."""
    own = _OwnLinks()
    for index, link in tables(raw.get("links")):
        own.add(index, link)
    peers = _Peers(own, place, found)
    peers.numbers[host_id(local_host)] = local_host
    for index, peer in tables(raw.get("peers")):
        peers.check(index, peer, is_local=peer.get("host") == local_host)


@dataclass(slots=True)
class _OwnLinks:
    """The addresses of this host's links, as far as ``[[links]]`` states them."""

    by_rail: dict[int, tuple[Address, Path]] = field(default_factory=dict)
    by_address: dict[object, Path] = field(default_factory=dict)
    """By `_identity`."""
    netdevs: dict[int, str] = field(default_factory=dict)
    """By rail."""
    loopback: bool = False
    """One of them is this host's loopback: tests run that way, and peers are there, too."""

    def add(self, index: int, link: dict[str, Any]) -> None:
        rail, address = link.get("rail"), ip_address(link.get("address"))
        netdev = link.get("netdev")
        if isinstance(rail, int) and isinstance(netdev, str):
            self.netdevs[rail] = netdev
        self.loopback = self.loopback or netdev == "lo"
        if address is None:
            return
        self.loopback = self.loopback or address.is_loopback
        where: Path = ("links", index, "address")
        self.by_address.setdefault(_identity(address, rail), where)
        if isinstance(rail, int):
            self.by_rail[rail] = address, where


def same_number(host: str, other: str) -> str:
    """What to say of two hosts whose probes cannot be told apart."""
    return f'probes of "{host}" and "{other}" have the same number, {host_id(host):08x}, by name'


def _identity(address: Address, rail: object) -> object:
    """What may stand once only."""
    return (address, rail) if is_link_local(address) else address


@dataclass(slots=True)
class _Peers:
    links: _OwnLinks
    origin_of: Callable[[Path], Origin]
    found: Found
    hosts: dict[str, Path] = field(default_factory=dict)
    numbers: dict[int, str] = field(default_factory=dict)
    """Number on the wire → the host that has it."""
    addresses: dict[object, Path] = field(default_factory=dict)
    """By `_identity`."""

    def check(self, index: int, peer: dict[str, Any], *, is_local: bool) -> None:
        host = peer.get("host")
        if isinstance(host, str):
            where: Path = ("peers", index, "host")
            first = self.hosts.setdefault(host, where)
            if first != where:
                text = f'"{host}" is also {self._named(first, where)}; allowed: each host once'
                self.found.append((where, text))
            elif (other := self.numbers.setdefault(host_id(host), host)) != host:
                self.found.append((where, f"{same_number(host, other)}; allowed: another name"))
        on_rail = self._addresses(("peers", index, "addresses"), peer, is_local=is_local)
        for rail, known in on_rail.items():
            if rail not in self.links.by_rail:
                continue
            own, place = self.links.by_rail[rail]
            if is_local:
                self._agrees(rail, known, own, place)
            elif own.version not in known:
                version, (where, _) = next(iter(known.items()))
                text = (
                    f"IPv{version}, but the local link of rail {rail} has an "
                    f"IPv{own.version} address; allowed: an IPv{own.version} address "
                    f"for rail {rail}"
                )
                self.found.append(((*where, "address"), text))

    def _addresses(
        self, at: Path, peer: dict[str, Any], *, is_local: bool
    ) -> dict[int, dict[int, tuple[Path, Address]]]:
        """Check that each address stands once; returns rail → IP version → the first there."""
        on_rail: dict[int, dict[int, tuple[Path, Address]]] = {}
        for number, entry in tables(peer.get("addresses")):
            rail, address = entry.get("rail"), ip_address(entry.get("address"))
            where: Path = (*at, number)
            if address is None:
                continue
            self._reachable(entry, where, address, is_local=is_local)
            identity = _identity(address, rail)
            first = self.addresses.setdefault(identity, where)
            if first == where and not is_local:
                first = self.links.by_address.get(identity, where)
            if first != where:
                also = self._named(first, where)
                text = f"{address} stands twice, first in {also}; allowed: each address once"
                self.found.append(((*where, "address"), text))
            if not isinstance(rail, int) or isinstance(rail, bool):
                continue
            known = on_rail.setdefault(rail, {})
            other, _ = known.setdefault(address.version, (where, address))
            if other != where:
                text = (
                    f"rail {rail} has an IPv{address.version} address in addresses[{other[-1]}]; "
                    f"allowed: one IPv4 and one IPv6 address for each rail"
                )
                self.found.append(((*where, "rail"), text))
        return on_rail

    def _reachable(
        self, entry: dict[str, Any], where: Path, address: Address, *, is_local: bool
    ) -> None:
        """Check that packets to it leave this host, and over the link of its rail."""
        if address.is_loopback and not is_local and not self.links.loopback:
            text = f"{address} is this host itself; allowed: an address of the peer"
            self.found.append(((*where, "address"), text))
        rail, zone = entry.get("rail"), zone_of(entry.get("address"))
        netdev = self.links.netdevs.get(rail) if isinstance(rail, int) else None
        if zone is not None and netdev not in (None, zone):
            text = (
                f"%{zone} is not the interface of rail {rail} here; "
                f"allowed: %{netdev}, or no zone in a list that hosts share"
            )
            self.found.append(((*where, "address"), text))

    def _agrees(
        self, rail: int, known: dict[int, tuple[Path, Address]], own: Address, place: Path
    ) -> None:
        """This host's entry names the address of its link, or leaves the rail out."""
        version = own.version if own.version in known else next(iter(known))
        where, listed = known[version]
        if listed == own:
            return
        text = (
            f"{listed}, but this host's link of rail {rail} has {own} in "
            f"{self._named(place, where)}; allowed: {own}"
        )
        self.found.append(((*where, "address"), text))

    def _named(self, path: Path, seen_from: Path) -> str:
        """A path as text; with file and line when it stands in another file."""
        there, here = self.origin_of(path), self.origin_of(seen_from)
        name = dotted(there.key)
        return name if there.file == here.file else f"{name} of {there.file}:{there.line}"
