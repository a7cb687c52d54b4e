"""What two readings of a NIC's PCIe links in a row say; one alone is no evidence. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PcieDoubts:
    """Of one NIC. Times are CLOCK_MONOTONIC ns of the second reading; None: it does not hold."""

    fell_ns: int | None = None
    """Since when a link is worse than it was."""
    uplink_ns: int | None = None
    """Since when a switch above has less than both ends of its uplink can."""
    uplink: str = ""
    """What it lacked at the last reading; empty: nothing."""
    _fell: bool = False
    """At the last reading a link was worse than it was."""

    def update(self, uplink: str, at_ns: int, *, fell: bool) -> None:
        """Take a reading.

        Args:
            uplink: what the switches above lack; empty: nothing.
            at_ns: of the reading.
            fell: a link is worse than it was.
        """
        self.fell_ns = (self.fell_ns or at_ns) if fell and self._fell else None
        self.uplink_ns = (self.uplink_ns or at_ns) if uplink and self.uplink else None
        self._fell, self.uplink = fell, uplink
