"""MTU black holes: large packets do not arrive, small ones on the same path do. Pure.

The prober sends a packet of the link's MTU with a small one now and then, and counts by path and
direction how many large ones in a row did not arrive although their small ones did. A link is at
fault when that holds of two peers (or of the one there is) and no large packet has passed since it
began; a path, when it holds of that path and others of the link pass.

What was found stays until a large packet passes, smaller ones are tested (the MTU was lowered) or
the path is no longer configured. Counts that begin anew, as a restarted prober's, end nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fabricd.probes.records import MtuRow

PROVEN = 5
"""Large packets in a row. At 3 % loss that is one false alarm of a path in 40 million rounds."""
MIN_PEERS = 2
KEPT_NS = 60 * 10**9
"""What was found is believed for so long without news: no answer, or no path of the link."""
WAYS = ("tx", "rx")


class MtuPath(NamedTuple):
    """One path with its large packets."""

    netdev: str
    peer: str
    address: str
    """Of the peer; with the netdev it names the path over reloads."""
    row: MtuRow

    def length(self, size: int) -> int:
        """Bytes of the IP packet around a UDP payload of ``size`` bytes."""
        return size + (48 if ":" in self.address else 28)


@dataclass(frozen=True, slots=True)
class MtuVerdict:
    """What drops large packets."""

    links: Mapping[str, str] = field(default_factory=dict)
    """Netdev → reason."""
    paths: Mapping[int, str] = field(default_factory=dict)
    """Path index → reason."""


class _Side(NamedTuple):
    """One direction of one path."""

    path: MtuPath
    way: str
    size: int
    missing: int
    passed_ns: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.path.netdev, self.path.address, self.way


class _Found(NamedTuple):
    """What was found of one direction of a path, or of a link."""

    size: int
    passed_ns: int
    """When the newest large packet before had passed; a later one ends it."""
    peers: int = 1
    """That had to witness it."""
    reason: str = ""


class MtuTest:
    """Remembers what was found until a large packet passes."""

    def __init__(self) -> None:
        self._sides: dict[tuple[str, str, str], _Found] = {}
        self._links: dict[tuple[str, str], _Found] = {}
        """By netdev and direction."""
        self._began: dict[tuple[str, str], int | None] = {}
        """The newest passed packet when a large one was first seen missing on a link; None: none is
        missing."""
        self._before: dict[tuple[str, str, str], int] = {}
        """Missing packets of a link's black hole that is over: they accuse no path."""
        self._seen: dict[str, int] = {}
        """When a link was last seen to have paths."""

    def judge(self, paths: Sequence[MtuPath], now: int) -> MtuVerdict:
        """What the prober's counts say.

        Args:
            paths: all paths of the host.
            now: CLOCK_MONOTONIC ns.
        """
        by_link: dict[str, list[MtuPath]] = {}
        for path in paths:
            by_link.setdefault(path.netdev, []).append(path)
        self._forget(by_link, now)
        holes: dict[int, str] = {}
        for netdev, own in by_link.items():
            for way in WAYS:
                sides = [_side(path, way) for path in own]
                bad = [side for side in sides if self._is_bad(side)]
                if self._is_link(netdev, way, sides, bad):
                    continue
                for side in bad:
                    if (found := self._sides.get(side.key)) is not None:
                        holes.setdefault(side.path.row.index, _reason(way, [side], found.size))
        links: dict[str, str] = {}
        for (netdev, _), found in self._links.items():
            links[netdev] = "; ".join(filter(None, (links.get(netdev), found.reason)))
        return MtuVerdict(links, holes)

    def _forget(self, by_link: Mapping[str, Sequence[MtuPath]], now: int) -> None:
        """What is not configured any more; a link without its address may have it back soon."""
        self._seen |= dict.fromkeys(by_link, now)
        self._seen = {netdev: at for netdev, at in self._seen.items() if now - at < KEPT_NS}
        present = {(p.netdev, p.address) for own in by_link.values() for p in own}

        def stays(netdev: str, address: str) -> bool:
            return (netdev, address) in present if netdev in by_link else netdev in self._seen

        self._sides = {key: found for key, found in self._sides.items() if stays(*key[:2])}
        self._before = {key: count for key, count in self._before.items() if stays(*key[:2])}
        self._links = {key: found for key, found in self._links.items() if key[0] in self._seen}
        self._began = {key: began for key, began in self._began.items() if key[0] in self._seen}

    def _is_bad(self, side: _Side) -> bool:
        if (found := self._sides.get(side.key)) is not None:
            if side.passed_ns <= found.passed_ns and not 0 < side.size < found.size:
                return True
            del self._sides[side.key]
        if side.missing < self._before.get(side.key, 0):
            del self._before[side.key]
        if not side.size or side.missing - self._before.get(side.key, 0) < PROVEN:
            return False
        self._sides[side.key] = _Found(side.size, side.passed_ns)
        return True

    def _is_link(self, netdev: str, way: str, sides: Sequence[_Side], bad: Sequence[_Side]) -> bool:
        key = (netdev, way)
        began = self._update_began(key, sides)
        peers = min(MIN_PEERS, len({side.path.peer for side in sides}))
        if (found := self._links.get(key)) is not None:
            over = any(s.passed_ns > found.passed_ns and s.size >= found.size for s in sides)
            if over or len({s.path.peer for s in bad}) < min(peers, found.peers):
                del self._links[key]
                for side in sides:
                    self._sides.pop(side.key, None)
                    self._before[side.key] = side.missing
                return False
            self._links[key] = found._replace(reason=_reason(way, bad, found.size))
            return True
        # What a prober counted before its restart does not tell what else has passed since.
        fresh = [side for side in bad if side.missing >= PROVEN]
        if began is None or len({side.path.peer for side in fresh}) < peers:
            return False
        # A path that passes packets as large speaks for the link; one across a router of a smaller
        # MTU does not.
        size = min(side.size for side in fresh)
        if any(s.passed_ns > began and not s.missing and s.size >= size for s in sides):
            return False
        newest = max(side.passed_ns for side in sides)
        self._links[key] = _Found(size, newest, peers, _reason(way, fresh, size))
        return True

    def _update_began(self, key: tuple[str, str], sides: Sequence[_Side]) -> int | None:
        missing = [side for side in sides if side.missing]
        if not missing:
            self._began[key] = None
        elif key not in self._began:
            # It began before the first look: what has passed since those did still counts.
            self._began[key] = max(side.passed_ns for side in missing)
        elif self._began[key] is None:
            self._began[key] = max(side.passed_ns for side in sides)
        return self._began[key]


def _side(path: MtuPath, way: str) -> _Side:
    row = path.row
    if way == "tx":
        return _Side(path, way, row.tx_size, row.tx_missing, row.tx_passed_ns)
    return _Side(path, way, row.rx_size, row.rx_missing, row.rx_passed_ns)


def _reason(way: str, sides: Sequence[_Side], size: int) -> str:
    length = max(side.path.length(size) for side in sides)
    peers = sorted({s.path.peer for s in sides})
    names = ", ".join(peers[:3]) + (f" and {len(peers) - 3} more" if len(peers) > 3 else "")
    where = "at" if way == "tx" else "from"
    return f"MTU black hole: {length}-byte packets do not arrive {where} {names}, small ones do"
