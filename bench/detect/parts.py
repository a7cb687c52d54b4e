"""The parts of ``bench detect``: `bench.detect` loads them on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.detect import (
    cost,
    gray,
    live_blackhole,
    live_carrier,
    live_damping,
    live_false,
    live_flaps,
    live_located,
    live_loss,
    live_stalls,
    live_starts,
    optics,
    safety,
)
from bench.detect.conditions import conditions
from bench.detect.simulator import simulator
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "flaps": live_flaps.flaps,
    "carrier": live_carrier.carrier,
    "blackhole": live_blackhole.blackhole,
    "false": live_false.false_downs,
    "loss": live_loss.loss,
    "starts": live_starts.starts,
    "located": live_located.located,
    "stalls": live_stalls.stalls,
    "gray": gray.gray,
    "simulator": simulator,
    "conditions": conditions,
    "damping": live_damping.damping,
    "optics": optics.run,
    "cost": cost.cost,
    "series": cost.series,
    "hardening": safety.hardening,
    "fuzz": safety.fuzzing,
}
"""Each is called with ``quick``; `false` and `damping` may be given ``minutes``."""

MINUTES: Mapping[str, float] = {
    "flaps": 4,
    "carrier": 4,
    "blackhole": 4,
    "false": 32,
    "loss": 12,
    "starts": 10,
    "located": 30,
    "stalls": 10,
    "gray": 5,
    "simulator": 27,
    "conditions": 2,
    "damping": 11,
    "optics": 5,
    "cost": 3,
    "series": 1,
    "hardening": 1,
    "fuzz": 5,
}
"""That each takes in full, on two cores with nothing beside."""
