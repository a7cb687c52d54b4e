"""Who probes whom: paths from the configuration. Pure.

Peers are chosen by rendezvous hashing (Thaler and Ravishankar, 1998) of unordered pairs, so both
ends of a pair compute the same number and, knowing the same hosts, agree without talking: a pair is
probed when *either* end has it among its best. A path must be configured at both ends, since each
end only hears what it probes.

A host probes the same peers on all rails. A miss accuses a link only while its sender is heard on
another rail, and "is it the NIC or the host?" is answered only by a peer seen on several: were
each rail to choose for itself, most peers of a large cluster would be seen on one. Clock paths
differ by rail, so that the clock mesh has a degree of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Address = str
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
    ports = [(peer.host, rail) for peer in peers for rail in sorted(peer.rails)]
    ports += [(local, rail) for _, rail, _ in links]
    clock_share = -(-clock_paths // max(1, len(links)))
    out: list[PathSpec] = []
    for index, rail, own in sorted(links):
        same_rail = [port for port in ports if port[1] == rail]
        chosen = _agreed((local, rail), same_rail, _SAME, per_rail)
        clock = _clock((local, rail), same_rail, chosen, per_rail, clock_share)
        if cross_rail:
            chosen += _agreed((local, rail), ports, _CROSS, cross_rail)
        for host, peer_rail in chosen:
            addresses = by_host[host].rails[peer_rail]
            same = [a for a in addresses if (":" in a) == (":" in own)]
            if same:
                others = tuple(a for a in addresses if a != same[0])
                marked = (host, peer_rail) in clock
                out.append(PathSpec(index, host, peer_rail, same[0], others, clock=marked))
    return out


def _agreed(
    own: tuple[str, int], ports: list[tuple[str, int]], salt: int, count: int
) -> list[tuple[str, int]]:
    """Ports that have ``own`` among their ``count`` best, or are among its own, sorted.

    With salt `_CROSS` a pair must be of different rails too.
    """
    ports = sorted(ports)
    numbers = {host: number for number, host in enumerate({host for host, _ in ports})}
    host_of = np.array([numbers[host] for host, _ in ports])
    rail_of = np.array([rail for _, rail in ports])
    keys = _keys(ports, salt)
    at = ports.index(own)
    weights = _mix(keys[at] ^ keys, salt)
    usable = host_of != host_of[at]
    if salt == _CROSS:
        usable &= rail_of != rail_of[at]
    candidates = np.flatnonzero(usable)
    if len(candidates) == 0:
        return []
    best = candidates[np.argsort(weights[candidates], kind="stable")[:count]]
    chosen = {int(i) for i in best}
    for other in candidates:
        if int(other) in chosen:
            continue
        theirs = host_of != host_of[other]
        if salt == _CROSS:
            theirs &= rail_of != rail_of[other]
        # How many does the other end like better than us?
        better = np.count_nonzero(_mix(keys[other] ^ keys[theirs], salt) < weights[other])
        if better < count:
            chosen.add(int(other))
    return [ports[i] for i in sorted(chosen)]


def _keys(ports: Sequence[tuple[str, int]], salt: int) -> _Keys:
    """On its own rail a port counts as its host, across rails as itself."""
    cross = salt == _CROSS
    return np.array([_key(host, rail if cross else 0) for host, rail in ports], dtype=np.uint64)


def _clock(
    own: tuple[str, int],
    ports: list[tuple[str, int]],
    chosen: list[tuple[str, int]],
    per_rail: int,
    count: int,
) -> set[tuple[str, int]]:
    """Of the chosen: the ``count`` that an end likes best on this rail, among its own choice."""
    ports = sorted(ports)
    keys = _keys(ports, _SAME)
    index = {port: i for i, port in enumerate(ports)}

    def best(port: int) -> set[int]:
        pairs = keys[port] ^ keys
        order = np.argsort(_mix(pairs, _SAME), kind="stable")
        own_choice = order[order != port][:per_rail]
        return {int(i) for i in own_choice[np.argsort(_mix(pairs[own_choice], own[1]))][:count]}

    at = index[own]
    mine = best(at)
    return {p for p in chosen if index[p] in mine or at in best(index[p])}


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
