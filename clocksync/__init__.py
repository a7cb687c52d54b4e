"""Fabric time: one time for all hosts, estimated from probe trains, with a bound on its error.

Subpackages: `clocksync.pair` fits a line between the clocks of two hosts, `clocksync.mesh` makes
one time of all pairs, `clocksync.page` publishes it, and `clocksync.ptp` gets TAI from PTP masters.
A job calls `clocksync.now` and `clocksync.tai.now`; `fabricd.clock` feeds the estimator and owns
the process.

Subpackages import one way: mesh uses pair, page and ptp; ptp uses pair. Nothing here imports
another package of the repository, and nothing sets the system's clock.
"""

from clocksync.page.clock_page import now

__all__ = ["now"]
