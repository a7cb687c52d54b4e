"""Fabric time: on real packets beside ptp4l and chronyd, in virtual time, and the clock page.

`bench.clock.clos` has the fabric and where its parameters come from.
"""

from __future__ import annotations

from bench import on_demand

__getattr__ = on_demand.parts(__name__)
