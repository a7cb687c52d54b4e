"""TAI on this host, for jobs; `clocksync.page.tai_page` has the page. Loads no NumPy.

ns, bound_ns = tai.now()
"""

from clocksync.page.clock_page import ClockError, State
from clocksync.page.tai_page import Source, TaiReader, TaiTime, now

__all__ = ["ClockError", "Source", "State", "TaiReader", "TaiTime", "now"]
