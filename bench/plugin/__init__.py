"""The plugin by itself: what it reaches and what it costs, beside peers in the same run.

Each part makes its own lab. docs/design/measurements.md says how each figure is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.plugin import comms, congestion, direct, lossy, several, shaped, slow, stalls
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "line": shaped.line,
    "bulk": direct.bulk,
    "pingpong": direct.pingpong,
    "stripe": shaped.stripe,
    "stalls": stalls.stalls,
    "comms": comms.comms,
    "congestion": congestion.congestion,
    "slow": slow.slow,
    "several": several.several,
    "lossy": lossy.lossy,
}
"""Each is called with ``quick``."""
