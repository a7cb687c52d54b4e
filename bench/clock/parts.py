"""The parts of ``bench clock``: `bench.clock` loads them on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.clock import (
    bounds,
    clock_steps,
    cpu,
    holdover,
    live,
    membership,
    plot,
    reading,
    reference,
    simulated,
    synchronized,
)
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "clos": simulated.clos,
    "scale": simulated.scale,
    "mesh": membership.mesh,
    "fit": simulated.fitting,
    "cpu": cpu.cpu,
    "page": reading.reading,
    "bound": bounds.bound,
    "untold": clock_steps.clock_steps,
    "holdover": holdover.holdover,
    "reference": reference.reference,
    "live": live.live,
    "plot": plot.plot,
    "synchronized": synchronized.synchronized,
}
"""Each is called with ``quick``."""

MINUTES: Mapping[str, float] = {
    "clos": 15, "scale": 2, "mesh": 2, "fit": 1, "cpu": 2, "page": 1, "bound": 9, "untold": 6,
    "holdover": 9, "reference": 7, "live": 10, "plot": 4, "synchronized": 8,
}  # fmt: skip
