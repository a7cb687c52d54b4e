"""Clocks of hosts that share a kernel, made different: where truth is known to the nanosecond.

A host's virtual clock is the machine's CLOCK_MONOTONIC_RAW through an offset, a rate that is off by
up to 30 ppm and a random walk of that rate (1 ppb/√s), all drawn from a seed and the host's id. So
each host can tell what its own and its peers' stamps would have been, and whoever measures can tell
what any host's clock shows at one moment.
"""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from clocksync.trains import Ints

GRID_NS = 50_000_000
LONGEST_S = 3600
MOST_OFFSET_NS = 10**9
RATE = 30e-6
WANDER = 1e-9
"""Per root of a second."""


class VirtualClock:
    """One host's clock over the machine's raw one."""

    def __init__(self, seed: int, host: int, origin_ns: int) -> None:
        """Args: ``origin_ns``: of the raw clock; it is followed for an hour from there."""
        rng = np.random.default_rng((seed, host))
        steps = LONGEST_S * 10**9 // GRID_NS
        self._origin = origin_ns
        self._offset = int(rng.integers(-MOST_OFFSET_NS, MOST_OFFSET_NS))
        noise = rng.normal(0, WANDER * np.sqrt(GRID_NS / 1e9), steps)
        rates = float(rng.uniform(-RATE, RATE)) + np.cumsum(noise)
        self._grid = np.arange(steps + 1) * float(GRID_NS)
        self._gained = np.concatenate(([0.0], np.cumsum(rates) * GRID_NS))

    def of(self, raw: Ints) -> Ints:
        """What it shows when the raw clock shows these."""
        since = raw - self._origin
        gained = np.interp(since.astype(float), self._grid, self._gained)
        shown: Ints = raw + self._offset + np.rint(gained).astype(np.int64)
        return shown

    def at(self, raw_ns: int) -> int:
        """The same for one moment."""
        return int(self.of(np.array([raw_ns], np.int64))[0])


class VirtualClocks:
    """For a clock service (`fabricd.clock.service.Clocks`)."""

    def __init__(self, seed: int, host: int, origin_ns: int) -> None:
        """Args: as of `VirtualClock`; ``host`` is this one."""
        self._clock = cache(lambda number: VirtualClock(seed, number, origin_ns))
        self._host = host

    def now(self) -> int:
        """This host's clock."""
        return self._clock(self._host).at(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))

    def own(self, stamps: Ints) -> Ints:
        """Stamps that this host made."""
        return self._clock(self._host).of(stamps)

    def peers(self, host: int, stamps: Ints) -> Ints:
        """Stamps that a peer made."""
        return self._clock(host).of(stamps)
