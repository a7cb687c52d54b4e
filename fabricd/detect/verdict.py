"""From what the probes say to whose fault it is. Pure.

Rules, in the order in which they are asked:

* Only paths that were heard in the prober's present life are evidence, and only conclusive misses
  (`fabricd.probes.records.MissRecord`) count; the prober never counts inconclusive ones.
* A miss says something about a link or path only if the peer lives: its packets came over another
  link after this path fell silent, and that for a while (when a peer that was stopped goes on, its
  paths come back one after the other): two link intervals to blame a link, one more interval of
  the path to blame the path. A peer that is silent everywhere is a host event. Likewise a peer's
  report that it does not hear us counts only while it hears us over another link: otherwise it was
  our own prober that did not send.
* A path that is silent alone is told from a peer that runs only now and then (a host without a
  free core, stalled again and again) by what the peer's other links brought since: if a share s of
  what was due there came, m misses in a row happen by chance with (1 − s)^m, and that must be
  below ``chance``.
* A link is at fault when every path on it to a living peer misses, two peers or more among them,
  and the misses add up to ``misses``. The peers are staggered by the link interval, so this takes
  about one path interval and not ``misses`` of them. RX (we do not hear) and TX (they do not hear
  us) are judged apart. A path that is merely overdue does not contradict RX silence.
* Otherwise a path that missed ``misses`` in a row is at fault alone; while the link may still turn
  out to be the cause, its paths wait.
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
    received: int | None = None
    """Packets so far; None: not known."""

    @property
    def clean(self) -> bool:
        """Heard, and nothing is missing in either direction."""
        return self.heard and not self.rx_missed and not self.tx_missed

    @property
    def sound(self) -> bool:
        """Good enough to come back: a single miss (a late prober) does not start the hold anew."""
        return self.heard and max(self.rx_missed, self.tx_missed) <= 1


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters of the verdict."""

    misses: int = 3
    link_interval_ns: int = 10_000_000
    min_peers: int = 2
    chance: float = 1e-4
    """Of a silence by chance: with a hundred paths and a busy peer there are many occasions."""


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


class Jury:
    """Judges all paths of the host together; remembers since when each silence has a witness."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._witnessed: dict[int, int] = {}
        self._reported: dict[int, int] = {}
        self._alive: dict[int, tuple[int, dict[int, int]]] = {}
        """Of a silent path: since when it is watched, and what its peer's other paths had then."""

    def reset(self) -> None:
        """Path indices have another meaning from now on."""
        self._witnessed.clear()
        self._reported.clear()
        self._alive.clear()

    def judge(self, paths: Sequence[PathView], now: int) -> Verdict:
        """The verdict at ``now``; call it whenever a path's misses changed."""
        by_link: dict[int, list[PathView]] = {}
        by_peer: dict[str, list[PathView]] = {}
        for path in paths:
            if path.heard:
                by_link.setdefault(path.link, []).append(path)
                by_peer.setdefault(path.peer, []).append(path)
        faults: dict[int, str] = {}
        suspects: dict[int, str] = {}
        path_faults: dict[int, str] = {}
        for link, all_paths in by_link.items():
            for path in all_paths:
                self._look_for_witness(path, by_peer[path.peer], now)
            # Once its peers live again a link hears something within the link interval.
            own = [p for p in all_paths if self._counts(p, 2 * self.rules.link_interval_ns, now)]
            if reason := _link_fault(own, self.rules, now):
                faults[link] = reason
                continue
            missed = [(p.peer, p.rx_missed + p.tx_missed) for p in own if not p.clean]
            if _enough(missed, self.rules):
                suspects[link] = f"probes missing to {_names({peer for peer, _ in missed})}"
                if self._undecided(link, own, now):
                    continue
            else:
                self._reported.pop(link, None)
            for path in own:
                wait = path.interval_ns + self.rules.link_interval_ns
                if (
                    self._counts(path, wait, now)
                    and (reason := _path_fault(path, self.rules))
                    and self._is_alive(path, by_peer[path.peer], now)
                ):
                    path_faults[path.index] = reason
        silent = {
            peer
            for peer, own in by_peer.items()
            if all(p.rx_missed >= self.rules.misses for p in own)
        }
        return Verdict(faults, suspects, path_faults, frozenset(silent))

    def _look_for_witness(self, path: PathView, same_peer: list[PathView], now: int) -> None:
        """Note since when the peer of a path with misses is known to live."""
        others = [p for p in same_peer if p.link != path.link]
        if path.rx_missed:
            due = path.last_heard_ns + path.interval_ns
            witness = any(p.last_heard_ns > due for p in others)
        else:
            witness = any(p.clean for p in others)
        if not path.rx_missed:
            self._alive.pop(path.index, None)
        elif path.index not in self._alive:
            had = {p.index: p.received for p in others if p.received is not None}
            self._alive[path.index] = (now, had)
        if path.clean or not witness:
            self._witnessed.pop(path.index, None)
        else:
            self._witnessed.setdefault(path.index, now)

    def _counts(self, path: PathView, wait: int, now: int) -> bool:
        """Whether the path may speak: it misses nothing, or has had a witness for ``wait`` ns."""
        return path.clean or now - self._witnessed.get(path.index, now) >= wait

    def _is_alive(self, path: PathView, same_peer: list[PathView], now: int) -> bool:
        """Whether the peer has sent most of what it should since this path fell silent."""
        if path.index not in self._alive:
            return True  # TX: that the peer does not hear us it says itself
        since, had = self._alive[path.index]
        if not had:
            return True
        due = came = 0.0
        for other in same_peer:
            before, received = had.get(other.index), other.received
            if before is None or received is None or received < before:
                continue
            if other.rx_missed >= self.rules.misses:
                continue  # silent as well: no witness either way
            # Trains bring more than one packet an interval; one is enough to show life.
            expected = (now - since) / other.interval_ns
            due += expected
            came += min(expected, received - before)
        share = came / (due + 1)  # one packet more might have been missing
        return (1 - share) ** path.rx_missed <= self.rules.chance

    def _undecided(self, link: int, paths: list[PathView], now: int) -> bool:
        """Whether the link may still turn out to be at fault.

        RX: nothing was heard on it since the silence; decided within the slowest path's interval,
        when its packet is heard or overdue. TX: a path without a report is clean only when its
        peer has had the time to miss us too.
        """
        silent = [p.last_heard_ns for p in paths if p.rx_missed]
        if silent:
            return not any(p.clean and p.last_heard_ns > max(silent) for p in paths)
        since = self._reported.setdefault(link, now)
        slowest = max((p.interval_ns for p in paths if p.clean), default=0)
        return now - since < slowest * 3 // 2


def overdue(path: PathView, rules: Rules, now: int) -> bool:
    """Whether the path's next packet should have come; not yet a miss."""
    return now - path.last_heard_ns > path.interval_ns + rules.link_interval_ns


def healthy(paths: Iterable[PathView], known: Iterable[int], live_peers: frozenset[str]) -> bool:
    """Whether probes have nothing against bringing a link back.

    Args:
        paths: the link's.
        known: indices of paths that were heard at any time (a prober that has just started has
            heard nobody, and that must not bring a black hole back).
        live_peers: heard cleanly on another link.

    Returns:
        True when at least half of the known paths to live peers are sound, or there are none.
    """
    wanted = set(known)
    own = [p for p in paths if p.index in wanted and p.peer in live_peers]
    return sum(p.sound for p in own) * 2 >= len(own)


def live_peers(paths: Iterable[PathView], without_link: int) -> frozenset[str]:
    """Peers with a clean path over another link."""
    return frozenset(p.peer for p in paths if p.link != without_link and p.clean)


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
