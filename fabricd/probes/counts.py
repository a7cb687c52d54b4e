"""Counts of the probes for the metrics: when the table is read, and what was out meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from fabricd.engine import Engine
from fabricd.probes.records import PathRow, RingHeader
from fabricd.probes.totals import LinkTotals, ProberTotals, ProbeTotals
from fabricd.state.evaluation import Evaluation


def rdma_name(netdev: str) -> str:
    """Under which the packets of RDMA probes of a link are counted; no netdev has a space."""
    return f"rdma {netdev}"


class ProbeCounts:
    """Told of each evaluation, and of each table that is read once a tick.

    Attributes:
        prober: what the prober says of itself.
    """

    def __init__(self, now: int) -> None:
        """Args: ``now``: CLOCK_MONOTONIC ns, when the daemon began."""
        self.prober = ProberTotals(now)
        self._totals = ProbeTotals()
        self._out: set[int] = set()
        """Paths that were out since the last table."""

    def of(self, netdev: str) -> LinkTotals:
        """Totals of one link."""
        return self._totals.of(netdev)

    def evaluated(self, evaluation: Evaluation, engine: Engine) -> None:
        """Note what is out by this evaluation: it may be over by the next table."""
        if evaluation.changes or evaluation.silent_hosts:
            self._out |= _outages(engine)

    def look(
        self,
        rows: Sequence[PathRow],
        header: RingHeader | None,
        engine: Engine,
        now: int,
        *,
        stalled_ns: int,
    ) -> None:
        """Take the prober's table; ``stalled_ns``: as for `ProbeTotals.update`."""
        self.prober.update(header)
        paths = [(path.netdev, path.key) for path in engine.paths]
        paths += [(rdma_name(path.netdev), path.key) for path in engine.rdma.paths]
        out = self._out | _outages(engine)
        incarnation = header.incarnation if header else 0
        self._totals.update(incarnation, rows, paths, out, now, stalled_ns=stalled_ns)
        self._out = set()

    def renumbered(self) -> None:
        """The paths have other indices from now on."""
        self._out = set()


def _outages(engine: Engine) -> set[int]:
    """Paths whose losses are no losses: they, their link or their peer are out."""
    silent = engine.silent_hosts
    over_rdma = {
        path.index
        for path in engine.rdma.paths
        if path.spec.peer in silent or engine.rdma.in_outage(path)
    }
    return over_rdma | {
        path.index
        for path in engine.paths
        if path.spec.peer in silent
        or engine.in_outage(path.index)
        or engine.links[path.spec.link].carrier is False
    }
