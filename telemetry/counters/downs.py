"""How often a port's link went down, from two witnesses: its counter and its events. Pure.

InfiniBand's ``link_downed`` has 8 bits and stays at 255; anybody may clear it; it counts in the
device, so it misses nothing in between. Port events (verbs async events, or the kernel's carrier
count) are seen one by one, unless the daemon was not running. Each can be too low, neither too
high, so the larger is the count, and it is exact only while both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Downs:
    """How often, and whether that is exact.

    Attributes:
        count: at least so often since the beginning.
        inexact: why it may be more often; empty: exact.
    """

    count: int
    inexact: str = ""

    @property
    def exact(self) -> bool:
        """Both witnesses agree and neither is at its end."""
        return not self.inexact


class PortDowns:
    """Compares both witnesses of one port.

    A reading and an event may overtake each other, so a difference counts only when the same
    witness is behind at two readings in a row.
    """

    def __init__(self) -> None:
        self._counted = 0
        self._events = 0
        self._inexact = ""
        self._lag = 0
        self._disagreement = ""
        self._untold = 0

    @property
    def untold(self) -> int:
        """Downs that the counter knows of and no event has told, at two readings in a row."""
        return self._untold

    def inexact_before(self, why: str) -> None:
        """A count that this one goes on with was not exact."""
        self._inexact = self._inexact or why

    def event(self, downs: int = 1) -> None:
        """The port went down, by an event."""
        self._events += downs

    def reading(self, increase: int, inexact: str = "") -> Downs:
        """The counter was read.

        Args:
            increase: since the last reading (`Step.increase` of ``link_downed``).
            inexact: `Step.inexact`.
        """
        self._counted += increase
        if inexact:
            self._inexact = self._inexact or f"link_downed {inexact}"
        lag = self._events - self._counted
        settled = lag * self._lag > 0
        self._untold = max(0, min(-lag, -self._lag))
        if settled:
            self._disagreement = f"link_downed counted {self._counted}, port events {self._events}"
        elif lag == 0:
            self._disagreement = ""
        self._lag = lag
        return self.state

    @property
    def state(self) -> Downs:
        """The count now."""
        reasons = [reason for reason in (self._inexact, self._disagreement) if reason]
        return Downs(max(self._counted, self._events), "; ".join(reasons))
