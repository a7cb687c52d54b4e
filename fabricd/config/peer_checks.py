"""Checks of ``[[peers]]`` across tables, on the raw document: each host and each address once.

A list that all hosts share has an entry for this host, too. That entry must agree with
``[[links]]``, since the other hosts probe its addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fabricd.config.addresses import Address, parse_address
from fabricd.config.files import Origin
from telemetry.service.config_errors import dotted

Path = tuple[str | int, ...]
Found = list[tuple[Path, str]]


def tables(value: object) -> list[tuple[int, dict[str, Any]]]:
    """The tables of a list, with their indices; none when it is no list."""
    if not isinstance(value, list):
        return []
    return [(i, item) for i, item in enumerate(value) if isinstance(item, dict)]


def ip_address(value: object) -> Address | None:
    """The address that a text is, or None."""
    try:
        return parse_address(value) if isinstance(value, str) else None
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
    for index, peer in tables(raw.get("peers")):
        peers.check(index, peer, is_local=peer.get("host") == local_host)


@dataclass(slots=True)
class _OwnLinks:
    """The addresses of this host's links, as far as ``[[links]]`` states them."""

    by_rail: dict[int, tuple[Address, Path]] = field(default_factory=dict)
    by_address: dict[Address, Path] = field(default_factory=dict)

    def add(self, index: int, link: dict[str, Any]) -> None:
        rail, address = link.get("rail"), ip_address(link.get("address"))
        if address is None:
            return
        where: Path = ("links", index, "address")
        self.by_address.setdefault(address, where)
        if isinstance(rail, int):
            self.by_rail[rail] = address, where


@dataclass(slots=True)
class _Peers:
    links: _OwnLinks
    origin_of: Callable[[Path], Origin]
    found: Found
    hosts: dict[str, Path] = field(default_factory=dict)
    addresses: dict[Address, Path] = field(default_factory=dict)

    def check(self, index: int, peer: dict[str, Any], *, is_local: bool) -> None:
        host = peer.get("host")
        if isinstance(host, str):
            where: Path = ("peers", index, "host")
            first = self.hosts.setdefault(host, where)
            if first != where:
                text = f'"{host}" is also {self._named(first, where)}; allowed: each host once'
                self.found.append((where, text))
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
            first = self.addresses.setdefault(address, where)
            if first == where and not is_local:
                first = self.links.by_address.get(address, where)
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
