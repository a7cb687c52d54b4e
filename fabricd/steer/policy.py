"""From states to weights. Pure.

Rules:

* DOWN, HOLD and ADMIN carry nothing, DEGRADED carries half, everything else the full weight. A link
  never seen up carries nothing while it has no carrier. A link that is DEGRADED because it is
  slower than it was carries its part of that speed, and at most half if it is worse otherwise too.
* A link that is likely to fail keeps its share of the full weight (a forecast). At most half of the
  links have less than the full weight then, those that are out or degraded for other reasons
  included; the one that was named first comes first.
* A hint never removes the last: when no link would carry, those least bad carry in full (a drained
  link before one that is down); when no link would reach a peer, the exceptions for that peer are
  dropped.
* Exceptions (probes alone make them) take at most ``share`` of the host's rails from a peer, the
  links that probes took out or degraded included. A rail counts when all its paths to the peer have
  less than the full weight; the one that lost them first comes first. A path whose peer says that
  its port has no carrier is none of them: that is no mere probe evidence.
* RDMA has weights of its own where RDMA probes are heard. It carries what the link carries, but
  nothing where RDMA probes say that it is broken, and in full where UDP probes alone took the link
  out. Where no rail is left for it, TCP carries.
* In observe every weight is full. Groups of links may observe while others are steered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fabricd.links.machine import CARRYING
from fabricd.steer.exceptions import RailPeer
from telemetry.events import LinkState

FULL = 1000
HALF = 500

_LAST_RESORT = (LinkState.DOWN, LinkState.UNKNOWN, LinkState.ADMIN)


@dataclass(frozen=True, slots=True)
class LinkInput:
    """One link."""

    netdev: str
    state: LinkState
    carrier: bool | None = True
    drained: bool = False
    """In ADMIN by an operator's order: nothing is known to be wrong with it."""
    share: float = 1.0
    """What a forecast leaves it."""
    degraded: float = 0.5
    """What it carries in state DEGRADED."""
    since_ns: int = 0
    """Since when."""
    by_probes: bool = False
    """Out or degraded by what probes say alone."""
    rdma: LinkState | None = None
    """State of RDMA on it; None: not known, and then it is as the link."""
    rdma_alone: bool = False
    """UDP probes alone took the link out, and RDMA probes are heard on it."""


@dataclass(frozen=True, slots=True)
class PathInput:
    """One (local link, peer NIC) with the addresses of that NIC."""

    netdev: str
    peer: str
    addresses: tuple[str, ...]
    state: LinkState
    since_ns: int = 0
    """Since when it has that state."""
    rdma: LinkState | None = None
    """State of RDMA on it; None: not known, and then it is as the path."""
    peer_dark: bool = False
    """The peer says that its port has no carrier."""


@dataclass(frozen=True, slots=True)
class RdmaEntry:
    """RDMA's part of an entry."""

    state: LinkState
    weight: int


@dataclass(frozen=True, slots=True)
class RailEntry:
    """One rail entry of the page."""

    netdev: str
    state: LinkState
    weight: int
    rdma: RdmaEntry | None = None
    """None: RDMA has the weight of the rail."""


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One path entry of the page."""

    netdev: str
    remote: str
    state: LinkState
    weight: int
    rdma: RdmaEntry | None = None
    """None: RDMA has the weight of the path."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the page should say."""

    rails: tuple[RailEntry, ...]
    paths: tuple[PathEntry, ...] = ()


def weight_of(state: LinkState, carrier: bool | None = True, degraded: float = 0.5) -> int:
    """The weight of one link alone; ``degraded``: what it carries in that state."""
    if state is LinkState.DEGRADED:
        return max(1, round(FULL * degraded))
    if state is LinkState.UNKNOWN and carrier is False:
        return 0
    return FULL if state in CARRYING else 0


def plan(
    links: Sequence[LinkInput],
    paths: Sequence[PathInput],
    *,
    share: float = 1.0,
    refused: Collection[RailPeer] | None = None,
) -> Plan:
    """What steering would do.

    Args:
        links: all of the host's.
        paths: all of theirs; none where no path is out or degraded.
        share: of the rails that probes may take from a peer.
        refused: (netdev, peer) whose exceptions stay off the page; None: `refused_exceptions` says.
    """
    weights = {x.netdev: weight_of(x.state, x.carrier, x.degraded) for x in links}
    weights |= _foretold(links, weights)
    if not any(weights.values()):
        weights |= dict.fromkeys(_least_bad(links), FULL)
    rdma = {x.netdev: entry for x in links if (entry := _rdma(x, weights[x.netdev])) is not None}
    if refused is None:
        refused = refused_exceptions(links, paths, share)
    said = _exceptions(paths, weights, refused)
    over_rdma = [replace(p, state=p.rdma) for p in paths if p.rdma is not None]
    taken = {netdev for netdev, entry in rdma.items() if entry.state not in CARRYING}
    less = _exceptions(
        over_rdma,
        {n: x.weight for n, x in rdma.items()},
        _refused(len(links), over_rdma, share, taken),
        keep_last=False,
    )
    return Plan(
        tuple(RailEntry(x.netdev, x.state, weights[x.netdev], rdma.get(x.netdev)) for x in links),
        tuple(_entries(paths, said, less)),
    )


def _exceptions(
    paths: Sequence[PathInput],
    weights: dict[str, int],
    refused: Collection[RailPeer],
    *,
    keep_last: bool = True,
) -> dict[_Key, int]:
    """The paths that carry less than their link, with what they carry; those out come first.

    Args:
        paths: all, in their order.
        weights: of the links.
        refused: (netdev, peer) that stay as they are.
        keep_last: not where another transport carries when this one has no path left.
    """
    listed = [p for p in paths if (p.netdev, p.peer) not in refused]
    out = [p for p in listed if p.state not in CARRYING]
    if keep_last:
        out = _keep_last(out, paths, weights)
    half = [p for p in listed if p.state is LinkState.DEGRADED]
    return {_key(p): 0 for p in out} | {_key(p): HALF for p in half}


_Key = tuple[str, str, tuple[str, ...]]


def _key(path: PathInput) -> _Key:
    return path.netdev, path.peer, path.addresses


def _entries(
    paths: Sequence[PathInput], said: dict[_Key, int], rdma: dict[_Key, int]
) -> Iterator[PathEntry]:
    """The page's entries: those that carry nothing first, for it has room for so many."""
    by_key = {_key(p): p for p in paths}
    for key in (*said, *(key for key in rdma if key not in said)):
        path, weight = by_key[key], said.get(key, FULL)
        over = None
        if path.rdma is not None:
            over = RdmaEntry(path.rdma, rdma.get(key, FULL))
        for address in sorted(path.addresses):
            yield PathEntry(path.netdev, address, path.state, weight, over)


def _rdma(link: LinkInput, weight: int) -> RdmaEntry | None:
    """What RDMA carries on a link of that weight; None: the same."""
    if link.rdma is None:
        return None
    if link.rdma not in CARRYING:
        return RdmaEntry(link.rdma, 0)
    return RdmaEntry(link.rdma, FULL if link.rdma_alone else weight)


def observed(wanted: Plan, only: frozenset[str] | None = None) -> Plan:
    """The same states with nothing taken away, from all links or ``only`` those (netdevs)."""
    return Plan(
        tuple(
            RailEntry(r.netdev, r.state, FULL) if only is None or r.netdev in only else r
            for r in wanted.rails
        ),
        tuple(p for p in wanted.paths if only is not None and p.netdev not in only),
    )


def _foretold(links: Sequence[LinkInput], weights: dict[str, int]) -> dict[str, int]:
    """The lower weights of links that work but are likely to fail; at most half of all links."""
    lowered = sum(weight < FULL for weight in weights.values())
    named = [x for x in links if x.share < 1 and weights[x.netdev] == FULL]
    named.sort(key=lambda x: (x.since_ns, x.netdev))
    room = max(0, len(links) // 2 - lowered)
    return {x.netdev: max(1, round(FULL * x.share)) for x in named[:room]}


def _least_bad(links: Sequence[LinkInput]) -> list[str]:
    for carrier in (True, None, False):
        known = [x for x in links if x.carrier is carrier]
        held = [x.netdev for x in known if x.state is LinkState.HOLD]
        if found := held or [x.netdev for x in known if x.drained]:
            return found
        for state in _LAST_RESORT:
            if found := [x.netdev for x in known if x.state is state]:
                return found
    return []


def wanted_exceptions(paths: Iterable[PathInput]) -> set[RailPeer]:
    """(Netdev, peer) all of whose paths carry less than their link."""
    return {
        (netdev, peer)
        for peer, rails in _by_peer(paths).items()
        for netdev, own in rails.items()
        if all(_less(p.state) for p in own)
    }


def refused_exceptions(
    links: Sequence[LinkInput], paths: Iterable[PathInput], share: float
) -> set[RailPeer]:
    """Those of them that would take too many rails from their peer at this moment."""
    return _refused(len(links), paths, share, {x.netdev for x in links if x.by_probes})


def _by_peer(paths: Iterable[PathInput]) -> dict[str, dict[str, list[PathInput]]]:
    """Peer → netdev → paths."""
    found: dict[str, dict[str, list[PathInput]]] = {}
    for path in paths:
        found.setdefault(path.peer, {}).setdefault(path.netdev, []).append(path)
    return found


def _refused(
    links: int, paths: Iterable[PathInput], share: float, taken: set[str]
) -> set[RailPeer]:
    refused: set[RailPeer] = set()
    for peer, rails in _by_peer(paths).items():
        lost = [
            (max(p.since_ns for p in own), netdev)
            for netdev, own in rails.items()
            if netdev not in taken
            and all(_less(p.state) for p in own)
            and not all(p.peer_dark for p in own)
        ]
        room = max(0, int(share * links) - len(taken))
        refused |= {(netdev, peer) for _, netdev in sorted(lost)[room:]}
    return refused


def _less(state: LinkState) -> bool:
    return state is LinkState.DEGRADED or state not in CARRYING


def _keep_last(
    out: list[PathInput], paths: Sequence[PathInput], weights: dict[str, int]
) -> list[PathInput]:
    """Drop the exceptions of peers that no link would reach any more."""
    removed: dict[str, set[str]] = {}
    for path in out:
        removed.setdefault(path.peer, set()).add(path.netdev)
    carrying = {netdev for netdev, weight in weights.items() if weight > 0}
    open_paths = {(p.peer, p.netdev) for p in paths if p.state in CARRYING and p.netdev in carrying}
    lost = {
        peer
        for peer, netdevs in removed.items()
        if carrying <= netdevs and not any(who == peer for who, _ in open_paths)
    }
    return [p for p in out if p.peer not in lost]
