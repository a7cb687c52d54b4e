"""MTU black holes: large packets do not arrive, small ones on the same path do. Pure.

The prober sends a packet of the link's MTU with a small one now and then, and counts by path and
direction how many large ones in a row did not arrive although their small ones did. A link is at
fault when that holds of two peers (or of the one there is) and no large packet has passed since it
began; a path, when it holds of that path and others of the link pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fabricd.probes.records import MtuRow

PROVEN = 5
"""Large packets in a row. At 3 % loss that is one false alarm of a path in 40 million rounds."""
MIN_PEERS = 2
HEADERS = {4: 28, 6: 48}
"""Bytes of IP and UDP headers, by the IP version."""


class MtuPath(NamedTuple):
    """One path with its large packets."""

    link: int
    peer: str
    peer_rail: int
    version: int
    """Of IP."""
    row: MtuRow


@dataclass(frozen=True, slots=True)
class MtuVerdict:
    """What drops large packets."""

    links: Mapping[int, str] = field(default_factory=dict)
    """Link index → reason."""
    paths: Mapping[int, str] = field(default_factory=dict)
    """Path index → reason."""


class _Side(NamedTuple):
    """One direction of one path."""

    path: MtuPath
    size: int
    missing: int
    passed_ns: int


class MtuTest:
    """Remembers what was found until a large packet passes."""

    def __init__(self) -> None:
        self._began: dict[tuple[int, str], int] = {}
        """(Link, direction) → when a large packet was first seen missing, since when none passed
        but on paths that passed all along."""

    def reset(self) -> None:
        """Indices have another meaning from now on."""
        self._began.clear()

    def judge(self, paths: Sequence[MtuPath], now: int) -> MtuVerdict:
        """What the prober's counts say.

        Args:
            paths: all paths of the host.
            now: CLOCK_MONOTONIC ns.
        """
        links: dict[int, str] = {}
        found: dict[int, str] = {}
        for link in {p.link for p in paths}:
            own = [p for p in paths if p.link == link]
            said = []
            for way, sides in (("tx", _tx(own)), ("rx", _rx(own))):
                bad = [s for s in sides if s.missing >= PROVEN]
                if self._is_link(link, way, sides, bad, now):
                    said.append(_reason(way, bad))
                    continue
                for side in bad:
                    found.setdefault(side.path.row.index, _reason(way, [side]))
            if said:
                links[link] = "; ".join(said)
        return MtuVerdict(links, found)

    def _is_link(
        self, link: int, way: str, sides: Sequence[_Side], bad: Sequence[_Side], now: int
    ) -> bool:
        key = (link, way)
        if not any(s.missing for s in sides):
            self._began.pop(key, None)
            return False
        began = self._began.setdefault(key, now)
        # A path that passes packets as large speaks for the link; one across a router of a smaller
        # MTU does not.
        large = min(s.size for s in sides if s.missing)
        alike = [s for s in sides if s.size >= large]
        if any(s.passed_ns >= began and not s.missing for s in alike):
            return False
        peers = {s.path.peer for s in bad}
        tested = {s.path.peer for s in alike}
        return len(peers) >= min(MIN_PEERS, len(tested)) > 0


def _tx(paths: Sequence[MtuPath]) -> list[_Side]:
    return [_Side(p, p.row.tx_size, p.row.tx_missing, p.row.tx_passed_ns) for p in paths]


def _rx(paths: Sequence[MtuPath]) -> list[_Side]:
    return [_Side(p, p.row.rx_size, p.row.rx_missing, p.row.rx_passed_ns) for p in paths]


def _reason(way: str, sides: Sequence[_Side]) -> str:
    size = max(s.size + HEADERS[s.path.version] for s in sides)
    peers = sorted({s.path.peer for s in sides})
    names = ", ".join(peers[:3]) + (f" and {len(peers) - 3} more" if len(peers) > 3 else "")
    where = "at" if way == "tx" else "from"
    return f"MTU black hole: {size}-byte packets do not arrive {where} {names}, small ones do"
