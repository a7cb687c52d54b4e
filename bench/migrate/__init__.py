"""A rank dies, the job does not: time to the next commit, exactness, cost, beside peers.

Each part runs jobs of its own. ``bench.training`` has the loops that they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.migrate import kills, steady
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "kills": kills.kills,
    "crash": kills.crashes,
    "steady": steady.steady,
}
"""Each is called with ``quick``."""
