"""Where the clock service's time comes from."""

from __future__ import annotations

import time
from typing import Protocol

from clocksync.pair.trains import Ints


class Clocks(Protocol):
    """Where time comes from. In production the host's own; a lab may put a virtual one between."""

    def now(self) -> int:
        """This host's clock, in which its stamps are."""

    def own(self, stamps: Ints) -> Ints:
        """Stamps that this host made."""

    def peers(self, host: int, stamps: Ints) -> Ints:
        """Stamps that a peer made."""


class RawClocks:
    """CLOCK_MONOTONIC_RAW, into which probers convert their stamps."""

    def now(self) -> int:
        """Nanoseconds."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    def own(self, stamps: Ints) -> Ints:
        """As they are."""
        return stamps

    def peers(self, host: int, stamps: Ints) -> Ints:  # noqa: ARG002
        """As they are."""
        return stamps
