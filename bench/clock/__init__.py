"""Fabric time: the estimator and the mesh, in virtual time so far, and the clock page.

`bench.clock.clos` has the fabric and where its parameters come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.clock import reading, simulated
from bench.report import Row

PARTS: Mapping[str, Callable[..., list[Row]]] = {
    "clos": simulated.clos,
    "scale": simulated.scale,
    "fit": simulated.fitting,
    "page": reading.reading,
}
"""Each is called with ``quick``."""

MINUTES: Mapping[str, float] = {"clos": 6, "scale": 1, "fit": 1, "page": 1}
