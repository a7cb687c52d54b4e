"""Attacks on the broker, on fabric-compute and on a host, and what they do to everybody else.

Each part has the same thing without the attack as its peer, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.attack import local, names, storm
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "storm": storm.storm,
    "names": names.names,
    "local": local.local,
}
"""Each is called with ``quick``."""

MINUTES: Mapping[str, float] = {"storm": 4, "names": 10, "local": 4}
"""That each takes in full, on two cores with nothing beside."""
