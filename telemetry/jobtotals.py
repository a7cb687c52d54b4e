"""Totals per rail over all job processes, past and present, that never go backwards.

Pure: fed with pages, it adds what each process counted since it was last seen. A process that ends
keeps its share; a counter that a (hostile or broken) page turns back is taken as the new base and
counted as refused, so nobody can make a total fall. What one step may add is bounded, so a page
that jumps to 2^64 does not spoil a total for ever either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from telemetry.snapshot import PluginSnapshot, RailTotals
from telemetry.statsdir import ProcessPage
from telemetry.statslayout import LATENCY_BUCKETS
from telemetry.statspage import Latency, StatsRail

_RAIL_COUNTERS = (
    "tx_bytes",
    "rx_bytes",
    "retransmit_bytes",
    "duplicate_bytes",
    "failovers",
    "rejoins",
    "stalls",
    "stall_ns",
)
_LATENCY_SUM = "latency_sum_ns"
_LATENCY_BUCKETS = tuple(f"latency_{i}" for i in range(LATENCY_BUCKETS))
_ALL_RAIL_COUNTERS = (*_RAIL_COUNTERS, _LATENCY_SUM, *_LATENCY_BUCKETS)
_PAGE_COUNTERS = ("errors", "refused_peers", "refused_fenced", "steer_rejected")
MAX_STEP = 2**50
"""The most a counter may grow between two looks (1.1 PB; 13 days of stall): more is refused."""
FORGET_NS = 60 * 10**9
"""A process whose page was not seen for this long is forgotten (its share of the totals stays)."""

Key = tuple[int, int, int]
"""(uid, pid, start_ns) of a process."""
Counters = dict[str, int]


@dataclass(slots=True)
class _Process:
    seen_ns: int = 0
    page: Counters = field(default_factory=dict)
    rails: dict[str, Counters] = field(default_factory=dict)


class JobTotals:
    """Accumulates pages into totals.

    Attributes:
        refused: counters that went backwards or jumped, since the start.
    """

    def __init__(self, netdevs: Iterable[str]) -> None:
        """Args: netdevs: the rails that are counted; a page's others are left out."""
        self._netdevs: tuple[str, ...] = ()
        self._totals: dict[str, Counters] = {}
        self.configure(netdevs)
        self._page_totals: Counters = dict.fromkeys(_PAGE_COUNTERS, 0)
        self._last: dict[Key, _Process] = {}
        self._gauges: dict[str, tuple[int, int]] = {}
        self._alive = 0
        self._following = self._foreign = 0
        self.refused = 0

    def configure(self, netdevs: Iterable[str]) -> None:
        """Other rails. Those that are gone keep their totals: they may come back."""
        self._netdevs = tuple(netdevs)
        for netdev in self._netdevs:
            self._totals.setdefault(netdev, dict.fromkeys(_ALL_RAIL_COUNTERS, 0))

    def update(self, pages: Iterable[ProcessPage], now_ns: int) -> None:
        """Take a look at all pages.

        Args:
            pages: every page read this time (`telemetry.statsdir.StatsDirectory.scan`).
            now_ns: CLOCK_MONOTONIC.
        """
        for _ in self.steps(pages, now_ns):
            pass

    def steps(self, pages: Iterable[ProcessPage], now_ns: int) -> Iterator[None]:
        """As `update`, a page at a step: between two the caller may do something else."""
        gauges: dict[str, list[int]] = {netdev: [0, 0] for netdev in self._totals}
        running = following = foreign = 0
        for process in pages:
            page = process.page
            last = self._last.setdefault((process.uid, *page.key), _Process())
            last.seen_ns = now_ns
            counters = {name: getattr(page, name) for name in _PAGE_COUNTERS}
            self._add(self._page_totals, last.page, counters)
            if process.alive:
                running += 1
                following += page.steer_present
            for rail in page.rails:
                foreign += process.alive and rail.netdev not in self._netdevs
                if rail.netdev not in gauges:
                    continue  # not counted, or only since this look began: the next one has it
                before = last.rails.setdefault(rail.netdev, {})
                self._add(self._totals[rail.netdev], before, _rail_counters(rail))
                if process.alive:
                    gauges[rail.netdev][0] += min(rail.in_flight_bytes, MAX_STEP)
                    gauges[rail.netdev][1] += rail.dead_paths
            yield
        self._alive, self._following, self._foreign = running, following, foreign
        self._gauges = {netdev: (flight, dead) for netdev, (flight, dead) in gauges.items()}
        self._last = {
            key: last for key, last in self._last.items() if now_ns - last.seen_ns < FORGET_NS
        }

    def rail(self, netdev: str) -> RailTotals:
        """Totals of one rail; zeros for one that is not counted."""
        counters = self._totals.get(netdev)
        if counters is None:
            return RailTotals()
        flight, dead = self._gauges.get(netdev, (0, 0))
        values = {name: counters[name] for name in _RAIL_COUNTERS if name != "stall_ns"}
        return RailTotals(
            **values,
            stall_s=counters["stall_ns"] / 1e9,
            latency=Latency(
                counters[_LATENCY_SUM], tuple(counters[name] for name in _LATENCY_BUCKETS)
            ),
            in_flight_bytes=flight,
            dead_paths=dead,
        )

    def plugin(self) -> PluginSnapshot:
        """The figures that belong to no rail."""
        return PluginSnapshot(
            processes=self._alive,
            following_steer=self._following,
            foreign_rails=self._foreign,
            **self._page_totals,
        )

    def to_state(self) -> dict[str, Any]:
        """A JSON document from which `restore` goes on after a restart within the same boot."""
        return {
            "rails": self._totals,
            "pages": self._page_totals,
            "last": [
                {
                    "key": list(key),
                    "seen_ns": process.seen_ns,
                    "page": process.page,
                    "rails": process.rails,
                }
                for key, process in self._last.items()
            ],
        }

    def restore(self, document: Mapping[str, Any]) -> None:
        """Go on from `to_state`'s document.

        Raises:
            ValueError: not such a document; nothing was changed.
        """
        try:
            rails = {
                netdev: _counters(document["rails"].get(netdev, {}), _ALL_RAIL_COUNTERS)
                for netdev in self._netdevs
            }
            pages = _counters(document["pages"], _PAGE_COUNTERS)
            last = {
                _key(entry["key"]): _Process(
                    seen_ns=int(entry["seen_ns"]),
                    page=_counters(entry["page"], _PAGE_COUNTERS),
                    rails={
                        str(netdev): _counters(values, _ALL_RAIL_COUNTERS)
                        for netdev, values in entry["rails"].items()
                    },
                )
                for entry in document["last"]
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a document of job totals: {error!r}") from error
        self._totals, self._page_totals, self._last = rails, pages, last

    def _add(self, totals: Counters, last: Counters, now: Counters) -> None:
        for name, value in now.items():
            step = value - last.get(name, 0)
            last[name] = value
            if 0 <= step <= MAX_STEP:
                totals[name] += step
            else:
                self.refused += 1


def _rail_counters(rail: StatsRail) -> Counters:
    counters: Counters = {name: getattr(rail, name) for name in _RAIL_COUNTERS}
    counters[_LATENCY_SUM] = rail.latency.sum_ns
    counters.update(zip(_LATENCY_BUCKETS, rail.latency.buckets, strict=True))
    return counters


def _counters(values: Mapping[str, Any], names: tuple[str, ...]) -> Counters:
    return {name: int(values.get(name, 0)) for name in names}


def _key(values: list[Any]) -> Key:
    uid, pid, start_ns = values
    return int(uid), int(pid), int(start_ns)
