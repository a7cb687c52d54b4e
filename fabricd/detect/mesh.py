"""Who probes whom: paths from the configuration. Pure.

Peers are chosen by rendezvous hashing (Thaler and Ravishankar, 1998) of unordered pairs, so both
ends of a pair compute the same number and, knowing the same hosts, agree without talking: a pair is
probed when *either* end has it among its best. A path must be configured at both ends, since each
end only hears what it probes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

Address = str


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
        clock_paths: that many paths carry clock trains, one to a rail first.
    """
    hosts = sorted([local, *(peer.host for peer in peers)])
    rails_of = {peer.host: sorted(peer.rails) for peer in peers}
    rails_of[local] = sorted(rail for _, rail, _ in links)
    out: list[PathSpec] = []
    for index, rail, own in sorted(links):
        chosen = [
            (peer, rail)
            for peer in peers
            if rail in peer.rails
            and _chosen_same(local, peer.host, rail, hosts, rails_of, per_rail)
        ]
        chosen += [
            (peer, other)
            for peer in peers
            for other in peer.rails
            if other != rail
            and _chosen_cross((local, rail), (peer.host, other), hosts, rails_of, cross_rail)
        ]
        for peer, peer_rail in chosen:
            addresses = peer.rails[peer_rail]
            same = [a for a in addresses if (":" in a) == (":" in own)]
            if same:
                others = tuple(a for a in addresses if a != same[0])
                out.append(PathSpec(index, peer.host, peer_rail, same[0], others))
    return _with_clock(out, clock_paths)


def _weight(*parts: object) -> int:
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2s(text, digest_size=8).digest(), "little")


def _top(candidates: list[tuple[int, str, int]], count: int) -> set[tuple[str, int]]:
    return {(host, rail) for _, host, rail in sorted(candidates)[:count]}


def _chosen_same(
    a: str, b: str, rail: int, hosts: list[str], rails_of: dict[str, list[int]], count: int
) -> bool:
    def best(one: str) -> set[tuple[str, int]]:
        candidates = [
            (_weight("rail", rail, *sorted((one, other))), other, rail)
            for other in hosts
            if other != one and rail in rails_of[other]
        ]
        return _top(candidates, count)

    return (b, rail) in best(a) or (a, rail) in best(b)


def _chosen_cross(
    a: tuple[str, int],
    b: tuple[str, int],
    hosts: list[str],
    rails_of: dict[str, list[int]],
    count: int,
) -> bool:
    def best(one: tuple[str, int]) -> set[tuple[str, int]]:
        candidates = [
            (_weight("cross", *sorted((one, (other, rail)))), other, rail)
            for other in hosts
            if other != one[0]
            for rail in rails_of[other]
            if rail != one[1]
        ]
        return _top(candidates, count)

    return b in best(a) or a in best(b)


def _with_clock(paths: list[PathSpec], count: int) -> list[PathSpec]:
    """Mark ``count`` paths as clock paths: the first of each link, then the second."""
    rank: dict[int, int] = {}
    order: list[tuple[int, int]] = []
    for position, path in enumerate(paths):
        turn = rank.get(path.link, 0)
        rank[path.link] = turn + 1
        order.append((turn, position))
    marked = {position for _, position in sorted(order)[:count]}
    return [
        PathSpec(p.link, p.peer, p.peer_rail, p.address, p.others, clock=i in marked)
        for i, p in enumerate(paths)
    ]
