"""Fabric time: the estimator (trains, fit, pair), the host in the mesh, and the clock page.

All pure but for the pages. `fabricd.clock` feeds it.
"""

from clocksync.page import now

__all__ = ["now"]
