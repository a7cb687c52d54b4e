"""Totals of the probes that never fall, and in which an outage is no loss. Pure.

The prober counts per path and per life: a path that a reload removes takes its counts along, and a
prober that restarts begins at zero. `ProbeTotals` adds up what each path gained between two looks.
Lost packets count only while the path and its link are up:

* The packets that an outage swallowed become known with the first packet after it. What a path
  gains while it is out, and for `SETTLE_NS` after, is therefore no loss.
* Nor is what a path gains around a scheduling gap of the own prober: its sockets overflowed.
* A path on which `SILENT` packets in a row are missing is out, whatever the detectors say.

What was counted before the first look at a path is left out: nobody knows what of it was an outage.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fabricd.probes.records import PathRow, RingHeader

SETTLE_NS = 2 * 10**9
"""Both ends have noticed the end of an outage by then, and told each other what was lost in it."""
STALL_NS = 500_000_000
"""A gap of the own prober for so long may have overflowed its sockets, as for the loss test."""
SILENT = 10
"""At 30 % loss the chance of so many in a row is 6 in a million."""
HEARD_NS = 10**9
"""A path on which nothing came for so long has no round trip."""


def is_heard(row: PathRow, misses: int, now: int) -> bool:
    """Whether its peer is heard on a path now, so that its round trip is one of now."""
    if row.rx_missed >= misses or row.gone or not row.last_heard_ns:
        return False
    return now - row.last_heard_ns < HEARD_NS + row.interval_ns


@dataclass(slots=True)
class LinkTotals:
    """Probe packets of one link since the daemon began."""

    sent: int = 0
    received: int = 0
    lost_tx: int = 0
    """Sent by us while the path was up, reported missing by the peer."""
    lost_rx: int = 0
    """Due from the peer while the path was up, never received."""


@dataclass(slots=True)
class _Seen:
    """One path at the last look."""

    row: PathRow
    settled_ns: int


class ProbeTotals:
    """The packets of all links. Links and paths that are gone keep their share."""

    def __init__(self) -> None:
        self._links: dict[str, LinkTotals] = {}
        self._seen: dict[Hashable, _Seen] = {}
        self._incarnation = 0

    def of(self, netdev: str) -> LinkTotals:
        """Of one link; zeros for one that was never seen."""
        return self._links.get(netdev) or LinkTotals()

    def update(
        self,
        incarnation: int,
        rows: Iterable[PathRow],
        paths: Sequence[tuple[str, Hashable]],
        out: Collection[int],
        now: int,
        *,
        stalled_ns: int = 0,
    ) -> None:
        """Take the prober's path table.

        Args:
            incarnation: of the prober that wrote it; another one counts from zero.
            rows: all paths.
            paths: (netdev, what the path is) by the index of its row.
            out: paths (indices) that were out at any time since the last look.
            now: CLOCK_MONOTONIC ns.
            stalled_ns: for how long the own prober did not run since the last look.
        """
        before = self._seen if incarnation == self._incarnation else {}
        self._incarnation, self._seen = incarnation, {}
        for row in rows:
            netdev, key = paths[row.index]
            link = self._links.setdefault(netdev, LinkTotals())
            old = before.get((netdev, key))
            silent = max(row.rx_missed, row.tx_missed) >= SILENT
            if row.index in out or silent or row.gone or stalled_ns >= STALL_NS or old is None:
                settled_ns = now + SETTLE_NS
            else:
                settled_ns = old.settled_ns
            self._seen[netdev, key] = _Seen(row, settled_ns)
            if old is None:
                continue
            link.sent += max(0, row.sent - old.row.sent)
            link.received += max(0, row.received - old.row.received)
            if now >= settled_ns:
                link.lost_tx += max(0, row.tx_lost - old.row.tx_lost)
                link.lost_rx += max(0, row.rx_lost - old.row.rx_lost)


@dataclass(slots=True)
class GrowingTotals:
    """Totals of counters that begin anew now and then, and may be out of sight for a while.

    A counter that is lower than it was has begun anew: nothing is added for that step. So a total
    may miss what was counted between two looks, and never says more than there was.
    """

    totals: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def update(self, counters: Mapping[str, int], *, anew: bool = False) -> Mapping[str, int]:
        """Take the counters as they are now.

        Args:
            counters: those that are in sight.
            anew: they are known to have begun at zero since the last look.

        Returns:
            All totals.
        """
        for name, value in counters.items():
            before = 0 if anew else self._last.get(name, 0)
            self.totals[name] = self.totals.get(name, 0) + max(0, value - before)
            self._last[name] = value
        return self.totals

    def skip(self, counters: Mapping[str, int]) -> None:
        """Take counters as the base: what they say now was counted before our time."""
        for name, value in counters.items():
            self.totals.setdefault(name, 0)
            self._last[name] = value


class ProberTotals:
    """What the prober says of itself, over all its lives since the daemon began."""

    def __init__(self, since_ns: int) -> None:
        """Args: ``since_ns``: CLOCK_MONOTONIC; a prober that is older has counts of before."""
        self._since_ns = since_ns
        self._incarnation = 0
        self._counters = GrowingTotals()

    def update(self, header: RingHeader | None) -> None:
        """Take the header of the ring; None: there is no prober now."""
        if header is None:
            return
        counters = {f"refused {reason}": n for reason, n in header.refused.items()} | {
            "stalls": header.stalls,
            "stall_ns": header.stall_ns,
            "due times": header.due_times_refused,
        }
        anew = header.incarnation != self._incarnation
        first, self._incarnation = self._incarnation == 0, header.incarnation
        if first and header.start_ns < self._since_ns:
            self._counters.skip(counters)
        else:
            self._counters.update(counters, anew=anew)

    def _of(self, name: str) -> int:
        return self._counters.totals.get(name, 0)

    @property
    def stalls(self) -> int:
        """Scheduling gaps."""
        return self._of("stalls")

    @property
    def stall_ns(self) -> int:
        """Time lost in them."""
        return self._of("stall_ns")

    @property
    def due_times_refused(self) -> int:
        """Due times of peers that made no sense."""
        return self._of("due times")

    @property
    def refused(self) -> dict[str, int]:
        """Packets refused, by reason."""
        prefix = "refused "
        totals = self._counters.totals.items()
        return {name.removeprefix(prefix): n for name, n in totals if name.startswith(prefix)}
