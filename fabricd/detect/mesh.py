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
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

Address = str
Ports = list[tuple[str, int]]

_WORD = 2**64 - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SAME, _CROSS = 0xFFFE, 0xFFFF
"""Salts of the choice on all rails and of that across rails; a rail's clock paths have its own."""
CLOCK_PATHS = 4
"""That a host chooses at least: the degree of the clock mesh, where all rails share a clock."""
CLOCK_PEERS = 2
"""That each rail chooses at least, at the same packets in all. Trains are most of a link's packets:
were they all to one peer, losses of the link would be that peer's as likely, for seconds."""


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


class Mesh:
    """The choice of one host among its peers; what costs time is computed once and kept."""

    def __init__(
        self,
        local: str,
        peers: Sequence[Node],
        *,
        per_rail: int,
        cross_rail: int,
        clock_paths: int = CLOCK_PATHS,
    ) -> None:
        """Set up the choice.

        Args:
            local: this host's name.
            peers: the other hosts.
            per_rail: how many peers each rail chooses.
            cross_rail: how many (peer, other rail) each rail chooses.
            clock_paths: each rail chooses its share of that many for clock trains, and
                `CLOCK_PEERS` at least; like all paths they are agreed, since trains must run both
                ways.
        """
        self._local = local
        self._by_host = {peer.host: peer for peer in peers}
        self._rails = {peer.host: sorted(peer.rails) for peer in peers}
        self._per_rail, self._cross_rail = per_rail, cross_rail
        self._clock_paths = clock_paths
        self._known: dict[frozenset[str], _Near] = {}
        self._links: list[tuple[int, int, Address]] | None = None
        self._chosen: list[PathSpec] = []

    def choose(self, links: Sequence[tuple[int, int, Address]]) -> list[PathSpec]:
        """All paths of this host, ordered by link, same-rail peers first.

        Args:
            links: (index, rail, own address) of each link.
        """
        wanted = sorted(links)
        if wanted != self._links:
            self._chosen, self._links = self._choose(wanted), wanted
        return list(self._chosen)

    def _choose(self, links: Sequence[tuple[int, int, Address]]) -> list[PathSpec]:
        local, cross_rail = self._local, self._cross_rail
        rails = self._rails | {local: sorted(rail for _, rail, _ in links)}
        clock_share = max(CLOCK_PEERS, _share(self._clock_paths, len(links)))
        out: list[PathSpec] = []
        for index, rail, own in links:
            there = self._near(host for host, theirs in rails.items() if rail in theirs)
            chosen = [(host, rail) for host in sorted({*there(local), *there.preferred_by(local)})]
            clock = _pairs((local, rail), there, rails, rail, clock_share)
            if cross_rail:
                pairs = _pairs((local, rail), self._near(rails), rails, _CROSS, cross_rail)
                chosen += sorted(pairs)
            for host, peer_rail in chosen:
                addresses = self._by_host[host].rails[peer_rail]
                same = [a for a in addresses if (":" in a) == (":" in own)]
                if same:
                    others = tuple(a for a in addresses if a != same[0])
                    marked = (host, peer_rail) in clock
                    out.append(PathSpec(index, host, peer_rail, same[0], others, clock=marked))
        return out

    def _near(self, hosts: Iterable[str]) -> _Near:
        found = frozenset(hosts)
        if found not in self._known:
            self._known[found] = _Near(found, self._per_rail)
        return self._known[found]


def choose(
    local: str,
    links: Sequence[tuple[int, int, Address]],
    peers: Sequence[Node],
    *,
    per_rail: int,
    cross_rail: int,
    clock_paths: int = CLOCK_PATHS,
) -> list[PathSpec]:
    """`Mesh.choose` of a mesh that nobody keeps."""
    mesh = Mesh(local, peers, per_rail=per_rail, cross_rail=cross_rail, clock_paths=clock_paths)
    return mesh.choose(links)


def train_rate(rate: int, links: int, peers: int, *, clock_paths: int = CLOCK_PATHS) -> int:
    """Trains a second of each clock path.

    Args:
        rate: of a path, did each rail choose no more than its share of ``clock_paths``.
        links: of this host.
        peers: other hosts; where there is one, its path gets all.
        clock_paths: as `Mesh` has them.
    """
    share = _share(clock_paths, links)
    chosen = min(max(CLOCK_PEERS, share), max(1, peers))
    return min(rate, -(-rate * share // chosen))


def _share(clock_paths: int, links: int) -> int:
    return -(-clock_paths // max(1, links))


class _Near:
    """The hosts that each host likes best, whatever their rails.

    Without NumPy, which would cost the daemon 12 MB for ever: a host's whole order is made for the
    few that matter, and of the others only enough to know that somebody is not among their best.
    """

    def __init__(self, hosts: Iterable[str], count: int) -> None:
        self._hosts = sorted(hosts)
        self._keys = [_key(host, 0) for host in self._hosts]
        self._index = {host: i for i, host in enumerate(self._hosts)}
        self._count = count
        self._known: dict[str, list[str]] = {}
        self._preferring: dict[str, list[str]] = {}

    def __call__(self, host: str) -> list[str]:
        if host not in self._known:
            at = self._index[host]
            weights = [_mix(self._keys[at] ^ key, _SAME) for key in self._keys]
            others = (i for i in range(len(weights)) if i != at)
            best = heapq.nsmallest(self._count, others, key=weights.__getitem__)
            self._known[host] = [self._hosts[i] for i in best]
        return self._known[host]

    def preferred_by(self, host: str) -> list[str]:
        """The hosts that have ``host`` among their best."""
        if host not in self._preferring:
            at = self._index[host]
            self._preferring[host] = [
                other for i, other in enumerate(self._hosts) if i != at and self._likes(i, at)
            ]
        return self._preferring[host]

    def _likes(self, who: int, whom: int) -> bool:
        """Whether fewer than the wanted number come before ``whom`` for ``who``.

        Where it does not, that is known after some 1/w of all, w being the pair's share of the
        largest weight: at 4,000 hosts a hundredth of the pairs is looked at.
        """
        own, better, count = self._keys[who] ^ _salt(_SAME), 0, self._count
        limit = _mix(self._keys[who] ^ self._keys[whom], _SAME)
        for i, key in enumerate(self._keys):
            x = own ^ key  # As in `_mix`; a call for each would be half of the time.
            x = (x ^ (x >> 30)) * _FIRST & _WORD
            x = (x ^ (x >> 27)) * _SECOND & _WORD
            x ^= x >> 31
            if x < limit or (x == limit and i < whom):
                better += i != who
                if better >= count:
                    return False
        return better < count


def _best(own: tuple[str, int], ports: Iterable[tuple[str, int]], salt: int, count: int) -> Ports:
    """The ``count`` ports that ``own`` likes best with that salt."""
    key = _key(*own)
    return heapq.nsmallest(count, sorted(ports), key=lambda port: _mix(key ^ _key(*port), salt))


def _pairs(
    own: tuple[str, int], near: _Near, rails: Mapping[str, Sequence[int]], salt: int, count: int
) -> set[tuple[str, int]]:
    """Ports of near hosts that ``own`` likes best with that salt, or that like ``own`` so.

    With salt `_CROSS` on other rails than ``own``; else the salt is the rail, and they are on it.
    """

    def liked(port: tuple[str, int]) -> Ports:
        host, rail = port
        if salt == _CROSS:
            fits = [(h, r) for h in near(host) for r in rails[h] if r != rail]
        else:
            fits = [(h, rail) for h in near(host)]
        return _best(port, fits, salt, count)

    out = set(liked(own))
    for host in near.preferred_by(own[0]):
        # No other port could like this one: `liked` gives ports of one rail, or of all others.
        ports = [(host, r) for r in rails[host] if (r != own[1]) == (salt == _CROSS)]
        out |= {port for port in ports if own in liked(port)}
    return out


@lru_cache(maxsize=1 << 16)
def _key(host: str, rail: int) -> int:
    digest = hashlib.blake2s(f"{host}\0{rail}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@lru_cache(maxsize=256)
def _salt(number: int) -> int:
    return int.from_bytes(hashlib.blake2s(b"%d" % number, digest_size=8).digest(), "little")


def _mix(value: int, salt: int) -> int:
    """A 64-bit finalizer (splitmix64's): the weight of a pair from the XOR of its keys."""
    x = value ^ _salt(salt)
    x = (x ^ (x >> 30)) * _FIRST & _WORD
    x = (x ^ (x >> 27)) * _SECOND & _WORD
    return x ^ (x >> 31)
