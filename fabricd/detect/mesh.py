"""Who probes whom: paths from the configuration. Pure.

Peers are chosen by rendezvous hashing (Thaler and Ravishankar, 1998) of unordered pairs, so both
ends of a pair compute the same number and, knowing the same hosts, agree without talking: a pair is
probed when *either* end has it among its best. A path must be configured at both ends, since each
end only hears what it probes.

A host probes the same peers on all rails. A miss accuses a link only while its sender is heard on
another rail, and "is it the NIC or the host?" is answered only by a peer seen on several: were
each rail to choose for itself, most peers of a large cluster would be seen on one. Cross-rail
peers are of these hosts too. Clock paths differ by rail, so that the clock mesh keeps its degree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Address = str
Ports = list[tuple[str, int]]
_Keys = NDArray[np.uint64]

_SAME, _CROSS = 0xFFFE, 0xFFFF
"""Salts of the choice on all rails and of that across rails; a rail's clock paths have its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host and where it can be reached: rail → addresses (at most one of each family)."""

    host: str
    rails: dict[int, tuple[Address, ...]]


@dataclass(frozen=True, slots=True)
class PathSpec:
    """One path to probe."""

    link: int
    """Index in the configuration's links."""
    peer: str
    peer_rail: int
    address: Address
    """Probed; of the link's own family."""
    others: tuple[Address, ...] = ()
    """Further addresses of the same peer NIC, for the steer page."""
    clock: bool = False


def choose(
    local: str,
    links: Sequence[tuple[int, int, Address]],
    peers: Sequence[Node],
    *,
    per_rail: int,
    cross_rail: int,
    clock_paths: int = 4,
) -> list[PathSpec]:
    """All paths of this host, ordered by link, same-rail peers first.

    Args:
        local: this host's name.
        links: (index, rail, own address) of each link.
        peers: the other hosts.
        per_rail: how many peers each rail chooses.
        cross_rail: how many (peer, other rail) each rail chooses.
        clock_paths: each rail chooses its share of that many for clock trains; like all paths
            they are agreed, since trains must run both ways.
    """
    by_host = {peer.host: peer for peer in peers}
    rails = {peer.host: sorted(peer.rails) for peer in peers}
    rails[local] = sorted(rail for _, rail, _ in links)
    known: dict[frozenset[str], _Near] = {}

    def near(hosts: Iterable[str]) -> _Near:
        found = frozenset(hosts)
        return known.setdefault(found, _Near(found, per_rail))

    clock_share = -(-clock_paths // max(1, len(links)))
    out: list[PathSpec] = []
    for index, rail, own in sorted(links):
        there = near(host for host, theirs in rails.items() if rail in theirs)
        chosen = [(host, rail) for host in sorted({*there(local), *there.who_like(local)})]
        clock = _pairs((local, rail), there, rails, rail, clock_share)
        if cross_rail:
            chosen += sorted(_pairs((local, rail), near(rails), rails, _CROSS, cross_rail))
        for host, peer_rail in chosen:
            addresses = by_host[host].rails[peer_rail]
            same = [a for a in addresses if (":" in a) == (":" in own)]
            if same:
                others = tuple(a for a in addresses if a != same[0])
                marked = (host, peer_rail) in clock
                out.append(PathSpec(index, host, peer_rail, same[0], others, clock=marked))
    return out


class _Near:
    """The hosts that each host likes best, whatever their rails."""

    def __init__(self, hosts: Iterable[str], count: int) -> None:
        self._hosts = sorted(hosts)
        self._keys = np.array([_key(host, 0) for host in self._hosts], dtype=np.uint64)
        self._index = {host: i for i, host in enumerate(self._hosts)}
        self._count = count
        self._known: dict[str, list[str]] = {}

    def __call__(self, host: str) -> list[str]:
        if host not in self._known:
            at = self._index[host]
            weights = _mix(self._keys[at] ^ self._keys, _SAME)
            order = np.argsort(weights, kind="stable")
            best = [self._hosts[i] for i in order[: self._count + 1] if i != at]
            self._known[host] = best[: self._count]
        return self._known[host]

    def who_like(self, host: str) -> list[str]:
        """The hosts that have ``host`` among their best."""
        return [other for other in self._hosts if other != host and host in self(other)]


def _best(own: tuple[str, int], ports: Iterable[tuple[str, int]], salt: int, count: int) -> Ports:
    """The ``count`` ports that ``own`` likes best with that salt."""
    among = sorted(ports)
    if not among:
        return []
    keys = np.array([_key(*port) for port in among], dtype=np.uint64)
    order = np.argsort(_mix(np.uint64(_key(*own)) ^ keys, salt), kind="stable")
    return [among[i] for i in order[:count]]


def _pairs(
    own: tuple[str, int], near: _Near, rails: Mapping[str, Sequence[int]], salt: int, count: int
) -> set[tuple[str, int]]:
    """Ports of near hosts that ``own`` likes best with that salt, or that like ``own`` so.

    With salt `_CROSS` on other rails than ``own``; else the salt is the rail, and they are on it.
    """

    def liked(port: tuple[str, int]) -> Ports:
        there = [(h, r) for h in near(port[0]) for r in rails[h]]
        fits = [p for p in there if (p[1] != port[1] if salt == _CROSS else p[1] == port[1])]
        return _best(port, fits, salt, count)

    out = set(liked(own))
    for host in near.who_like(own[0]):
        out |= {(host, rail) for rail in rails[host] if own in liked((host, rail))}
    return out


@lru_cache(maxsize=1 << 16)
def _key(host: str, rail: int) -> int:
    digest = hashlib.blake2s(f"{host}\0{rail}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(values: _Keys, salt: int) -> _Keys:
    """A 64-bit finalizer (splitmix64's): the weight of a pair from the XOR of its keys."""
    salted = int.from_bytes(hashlib.blake2s(b"%d" % salt, digest_size=8).digest(), "little")
    x = np.asarray(values, dtype=np.uint64) ^ np.uint64(salted)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
