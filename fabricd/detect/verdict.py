"""From what the probes say to whose fault it is. Pure.

Rules, in the order in which they are asked:

* Only paths that were heard in the prober's present life are evidence, and only conclusive misses
  (`fabricd.probes.records.MissRecord`) count; the prober never counts inconclusive ones.
* A peer that is silent on all our links is a host event: it says nothing about a link.
* A link is at fault when every path on it to a peer alive elsewhere misses, two peers or more among
  them, and the misses add up to ``misses``. The peers are staggered by the link interval, so this
  takes about one path interval and not ``misses`` of them. RX (we do not hear) and TX (they do not
  hear us) are judged apart. A path that is merely overdue does not contradict RX silence.
* Otherwise a path that missed ``misses`` in a row is at fault alone, when its peer lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PathView:
    """One path as its row in the prober's ring says. Times are CLOCK_MONOTONIC ns."""

    index: int
    link: int
    peer: str
    heard: bool
    """In the prober's present life."""
    rx_missed: int
    """Conclusive misses in a row."""
    tx_missed: int
    interval_ns: int
    last_heard_ns: int

    @property
    def clean(self) -> bool:
        """Heard, and nothing is missing in either direction."""
        return self.heard and not self.rx_missed and not self.tx_missed


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of the verdict."""

    misses: int = 3
    link_interval_ns: int = 10_000_000
    min_peers: int = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probes say about the whole host at one moment."""

    link_faults: dict[int, str] = field(default_factory=dict)
    """Link index → reason."""
    link_suspects: dict[int, str] = field(default_factory=dict)
    path_faults: dict[int, str] = field(default_factory=dict)
    """Path index → reason; never of a link that is itself at fault."""
    silent_hosts: frozenset[str] = frozenset()
    """Peers heard before and silent now on all links."""


def overdue(path: PathView, rules: Rules, now: int) -> bool:
    """Whether the path's next packet should have come; not yet a miss."""
    return now - path.last_heard_ns > path.interval_ns + rules.link_interval_ns


def judge(paths: Sequence[PathView], rules: Rules, now: int) -> Verdict:
    """Judge all paths of the host together."""
    known = [path for path in paths if path.heard]
    by_link: dict[int, list[PathView]] = {}
    by_peer: dict[str, list[PathView]] = {}
    for path in known:
        by_link.setdefault(path.link, []).append(path)
        by_peer.setdefault(path.peer, []).append(path)
    faults: dict[int, str] = {}
    suspects: dict[int, str] = {}
    path_faults: dict[int, str] = {}
    for link, own in by_link.items():
        witnesses = [p for p in own if _alive_elsewhere(p, by_peer[p.peer], rules, now)]
        if reason := _link_fault(witnesses, rules, now):
            faults[link] = reason
            continue
        missing = {p.peer for p in witnesses if p.rx_missed or p.tx_missed}
        if len(missing) >= rules.min_peers:
            suspects[link] = f"probes missing to {_names(missing)}"
        for path in witnesses:
            if reason := _path_fault(path, rules):
                path_faults[path.index] = reason
    silent = {
        peer for peer, own in by_peer.items() if all(p.rx_missed >= rules.misses for p in own)
    }
    return Verdict(faults, suspects, path_faults, frozenset(silent))


def healthy(paths: Iterable[PathView], known: Iterable[int], live_peers: frozenset[str]) -> bool:
    """Whether probes have nothing against bringing a link back.

    Args:
        paths: the link's.
        known: indices of paths that were heard at any time (a prober that has just started has
            heard nobody, and that must not bring a black hole back).
        live_peers: heard cleanly on another link.

    Returns:
        True when at least half of the known paths to live peers are clean, or there are none.
    """
    wanted = set(known)
    own = [p for p in paths if p.index in wanted and p.peer in live_peers]
    return sum(p.clean for p in own) * 2 >= len(own)


def live_peers(paths: Iterable[PathView], without_link: int) -> frozenset[str]:
    """Peers with a clean path over another link."""
    return frozenset(p.peer for p in paths if p.link != without_link and p.clean)


def _alive_elsewhere(path: PathView, same_peer: list[PathView], rules: Rules, now: int) -> bool:
    """The peer talks on another link, or it reports itself that it does not hear us."""
    if path.tx_missed and not path.rx_missed:
        return True
    return any(
        other.link != path.link and not other.rx_missed and not overdue(other, rules, now)
        for other in same_peer
    )


def _link_fault(paths: list[PathView], rules: Rules, now: int) -> str:
    rx = [p for p in paths if p.rx_missed]
    tx = [p for p in paths if p.tx_missed]
    if _enough([(p.peer, p.rx_missed) for p in rx], rules) and all(
        p.rx_missed or overdue(p, rules, now) for p in paths
    ):
        return f"nothing heard from {_names({p.peer for p in rx})}"
    if _enough([(p.peer, p.tx_missed) for p in tx], rules) and len(tx) == len(paths):
        return f"not heard by {_names({p.peer for p in tx})}"
    return ""


def _enough(missing: list[tuple[str, int]], rules: Rules) -> bool:
    peers = {peer for peer, _ in missing}
    return len(peers) >= rules.min_peers and sum(n for _, n in missing) >= rules.misses


def _path_fault(path: PathView, rules: Rules) -> str:
    if path.rx_missed >= rules.misses:
        return f"{path.peer} not heard on this path"
    if path.tx_missed >= rules.misses:
        return f"not heard by {path.peer} on this path"
    return ""


def _names(peers: set[str]) -> str:
    names = sorted(peers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
