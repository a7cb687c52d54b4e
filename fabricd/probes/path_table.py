"""The prober's path table, read once for all who look in the same tick."""

from __future__ import annotations

import time
from typing import NamedTuple

from fabricd.detect import evidence
from fabricd.detect.silence import PathView
from fabricd.engine import Engine
from fabricd.probes.feed import ProberFeed
from fabricd.probes.records import PathRow

RECENT_NS = 100_000_000
"""A path table so young serves all who look in the same tick."""


class PathTable(NamedTuple):
    """The prober's paths as they were read."""

    read_ns: int
    rows: list[PathRow]
    views: list[PathView]
    rdma_rows: list[PathRow]
    """Of the RDMA paths; empty: the prober probes none."""
    rdma_views: list[PathView]


class PathTables:
    """Reads the table; attribute ``last``: what it said, None: there is no prober."""

    def __init__(self, engine: Engine, feed: ProberFeed) -> None:
        self._engine, self._feed = engine, feed
        self.last: PathTable | None = None

    def forget(self) -> None:
        """Paths have other indices from now on."""
        self.last = None

    def views(self) -> list[PathView] | None:
        """All UDP paths as the prober sees them now; None: there is no prober."""
        table = self.read()
        return table.views if table else None

    def rows(self, *, recent: bool = False) -> list[PathRow] | None:
        """The prober's UDP paths, of now or of this tick; None: there is no prober."""
        table = self.read(recent=recent)
        return table.rows if table else None

    def read(self, *, recent: bool = False) -> PathTable | None:
        """The table of now, or with ``recent`` of this tick; None: there is no prober."""
        now = time.monotonic_ns()
        if recent and self.last is not None and now - self.last.read_ns < RECENT_NS:
            return self.last
        found, self.last = self._feed.all_paths(), None
        if found is not None:
            rows, rdma = found
            paths, over_rdma = self._engine.paths, self._engine.rdma.paths
            self.last = PathTable(
                now, rows, evidence.path_views(rows, paths),
                rdma, evidence.path_views(rdma, over_rdma, first=len(paths)),
            )  # fmt: skip
        return self.last
