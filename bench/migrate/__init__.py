"""A rank dies, the job does not: time to the next commit, exactness, cost, beside peers.

Each part runs jobs of its own. ``bench.training`` has the loops that they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.migrate import (
    backend,
    calls,
    frameworks,
    hangs,
    hosts,
    kills,
    mix,
    peers,
    planned,
    scale,
    sharded,
    steady,
)
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "kills": kills.kills,
    "crash": kills.crashes,
    "sharded": sharded.sharded,
    "frameworks": frameworks.frameworks,
    "steady": steady.steady,
    "calls": calls.calls,
    "frozen": hosts.frozen_hosts,
    "broker": hosts.frozen_without_broker,
    "planned": planned.planned,
    "mix": mix.mix,
    "backend": backend.backend,
    "peers": peers.peers,
    "scale": scale.scale,
    "hang": hangs.hang,
}
"""Each is called with ``quick``."""

MINUTES: Mapping[str, float] = {
    "kills": 10,
    "crash": 4,
    "sharded": 20,
    "frameworks": 20,
    "steady": 5,
    "calls": 7,
    "frozen": 8,
    "broker": 8,
    "planned": 5,
    "mix": 25,
    "backend": 2,
    "peers": 6,
    "scale": 5,
    "hang": 33,
}
"""That each takes in full, on two cores with nothing beside."""
