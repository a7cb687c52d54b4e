"""Baseline rate of rare events in one stream, learnt from what it has shown. Pure.

A sequential test needs a normal rate. One for all has to be that of the worst that is still well,
and then makes the test slow for the many that are far better. So a stream begins as if it were a
good one, and is judged by what it has shown itself to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fabricd.detect.sequential import Test


@dataclass(slots=True)
class BaselineRate:
    """Baseline rate of one stream: events per unit of exposure."""

    least: float
    """Rate that is believed at first, and the least that ever is."""
    most: float
    """What is worse is not got used to."""
    belief: float = 1e6
    """Exposure that the belief at first is worth; ten times that is remembered."""
    _events: float = field(default=0.0, repr=False)
    _exposure: float = field(default=0.0, repr=False)

    @property
    def rate(self) -> float:
        """Events per unit of exposure."""
        seen = (self.least * self.belief + self._events) / (self.belief + self._exposure)
        return min(max(seen, self.least), self.most)

    def save(self) -> list[float]:
        """Events and exposure that it has seen: what `restore` takes."""
        return [self._events, self._exposure]

    def restore(self, events: float, exposure: float) -> None:
        """Go on from what an earlier one saw.

        Raises:
            ValueError: no counts.
        """
        if not (0 <= events <= exposure < math.inf):
            raise ValueError(f"{events} events in {exposure}")
        self._events = self._exposure = 0.0
        self.learn(events, exposure)

    def nats(self, test: Test, events: float, exposure: float) -> float:
        """As `Test.nats`, with the normal rate of this stream."""
        taken = exposure * test.cost
        return events * math.log(test.sick / self.rate) - taken if events else -taken

    def learn(self, events: float, exposure: float) -> None:
        """Take what was counted while the stream was well."""
        self._events += events
        self._exposure += exposure
        if self._exposure > (most := 10 * self.belief):
            self._events *= most / self._exposure
            self._exposure = most
        # One burst is not to be remembered for longer than it takes to see that it was one.
        self._events = min(self._events, self.most * (self.belief + self._exposure))
