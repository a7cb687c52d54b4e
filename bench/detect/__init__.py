"""Detection: flaps counted, faults seen in time and in the right place, nothing cried out falsely.

Each part makes what it needs. docs/detection.md and docs/optics.md say how each figure is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.detect import live_blackhole, live_carrier, live_false, live_flaps, live_loss, optics
from bench.detect.simulator import simulator
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "flaps": live_flaps.flaps,
    "carrier": live_carrier.carrier,
    "blackhole": live_blackhole.blackhole,
    "false": live_false.false_downs,
    "loss": live_loss.loss,
    "simulator": simulator,
    "optics": optics.run,
}
"""Each is called with ``quick``."""
