"""What fabric time says of the clocks at both ends of a path, from the clock service's document.

A path's own stamps put their two clocks apart by the offset and half of what its ways differ by.
The mesh says how much of that is the way (the *surplus*). What is left is the offset by fabric
time, which all paths between two hosts share, those without clock trains too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fabricd.clock.status_reader import FRESH_S, NAME, read
from fabricd.delay.path import Reading

MOST_BOUND_NS = 50_000
"""Of more than half a standing queue it does not tell the ways of it apart."""
FRESH_NS = round(FRESH_S * 1e9)
LED_NS = 30 * 10**9
"""So far a line is carried on: its rate is good to some nanoseconds a second, and the window whose
middle it begins in may be 16 s long."""


class Apart(NamedTuple):
    """Two hosts' raw clocks, as a line."""

    at_ns: int
    """Our clock."""
    offset_ns: float
    """The peer's minus ours then, by fabric time."""
    slope: float
    bound_ns: float

    def at(self, now_ns: int) -> Reading | None:
        """As of then (our clock); None: that is too long after, or before."""
        age = now_ns - self.at_ns
        if abs(age) > LED_NS:
            return None
        return Reading(round(self.offset_ns + self.slope * age), round(self.bound_ns))


def apart(
    rows: Sequence[Mapping[str, Any]], hosts: Mapping[tuple[str, str], str]
) -> dict[str, Apart]:
    """By peer, of its paths the one that is known best. Pure.

    Args:
        rows: ``paths`` of the clock service's document.
        hosts: (our netdev, the peer's address) → the peer's name.
    """
    found: dict[str, Apart] = {}
    for row in rows:
        peer = hosts.get((str(row.get("netdev")), str(row.get("peer"))))
        if peer is None or any(row.get(name) is None for name in _USED):
            continue
        at, offset, slope, surplus, bound = (row[name] for name in _USED)
        surplus -= row.get("way_skew_ns") or 0.0  # what the line has left out already
        if bound <= MOST_BOUND_NS and (peer not in found or bound < found[peer].bound_ns):
            found[peer] = Apart(int(at), offset - surplus, slope, bound)
    return found


_USED = ("at_ns", "offset_ns", "slope", "surplus_ns", "way_bound_ns")
"""Numbers, or open: `fabricd.clock.status_reader` refuses what is neither."""


class FabricTimes:
    """Reads the document when it is another one. Without a clock service nothing is known."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._seen = 0
        self._hosts: dict[tuple[str, str], str] = {}
        self._apart: dict[str, Apart] = {}

    def configure(self, hosts: Mapping[tuple[str, str], str]) -> None:
        """Where paths lead; as of `apart`."""
        self._hosts, self._seen, self._apart = dict(hosts), 0, {}

    def look(self) -> None:
        """Once a second: the document may be another one, or old."""
        try:
            written = (self._run_dir / NAME).stat().st_mtime_ns
            if written == self._seen:
                if time.time_ns() - written > FRESH_NS:
                    self._apart = {}
                return
            self._seen, self._apart = written, {}
            if time.time_ns() - written <= FRESH_NS:
                self._apart = apart(read(self._run_dir)["paths"], self._hosts)
        except (OSError, ValueError):
            self._apart = {}  # `fabricctl clock` says what is wrong with it

    def __call__(self, peer: str, now_ns: int) -> Reading | None:
        """The two hosts' raw clocks at a moment of ours; None: not known."""
        known = self._apart.get(peer)
        return None if known is None else known.at(now_ns)
