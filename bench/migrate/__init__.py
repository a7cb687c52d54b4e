"""A rank dies, the job does not: time to the next commit, exactness, cost, beside peers.

Each part runs jobs of its own. ``bench.training`` has the loops that they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.migrate import backend, hosts, kills, peers, planned, scale, steady
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "kills": kills.kills,
    "crash": kills.crashes,
    "steady": steady.steady,
    "frozen": hosts.frozen_hosts,
    "planned": planned.planned,
    "backend": backend.backend,
    "peers": peers.peers,
    "scale": scale.scale,
}
"""Each is called with ``quick``."""

MINUTES: Mapping[str, float] = {
    "kills": 10,
    "crash": 4,
    "steady": 5,
    "frozen": 8,
    "planned": 5,
    "backend": 2,
    "peers": 6,
    "scale": 5,
}
"""That each takes in full, on two cores with nothing beside."""
