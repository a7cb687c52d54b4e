"""The prober's results, as the parts of a host read them."""

from __future__ import annotations

from dataclasses import dataclass

from fabricd.probes.counts import ProbeCounts
from fabricd.probes.feed import ProberFeed
from fabricd.probes.path_table import PathTables


@dataclass(frozen=True, slots=True)
class Prober:
    """Each member owns what it has read.

    Attributes:
        feed: the connection to it, and its ring.
        tables: its path table, read once for all who look in the same tick.
        counts: packets and losses so far, for the metrics.
    """

    feed: ProberFeed
    tables: PathTables
    counts: ProbeCounts
