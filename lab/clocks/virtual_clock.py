"""Clocks of hosts that share a kernel, made different: where truth is known to the nanosecond.

A host's virtual clock is the machine's CLOCK_MONOTONIC_RAW through an offset, a rate that is off by
up to 30 ppm and a random walk of that rate (1 ppb/√s), all drawn from a seed and the host's id. It
may be stepped at given moments. So each host can tell what its own and its peers' stamps would have
been, and whoever measures can tell what any host's clock shows at one moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from clocksync.pair.trains import Ints

GRID_NS = 50_000_000
LONGEST_S = 3600
MOST_OFFSET_NS = 10**9
RATE = 30e-6
WANDER = 1e-9
"""Per root of a second."""


class Step(NamedTuple):
    """A clock is set."""

    host: int
    at_ns: int
    """Of the raw clock."""
    by_ns: int

    @classmethod
    def parse(cls, text: str) -> Step:
        """Of "host:at:by".

        Raises:
            ValueError: it is none.
        """
        host, at, by = text.split(":")
        return cls(int(host), int(at), int(by))

    def __str__(self) -> str:
        return ":".join(map(str, self))


class VirtualClock:
    """One host's clock over the machine's raw one."""

    def __init__(self, seed: int, host: int, origin_ns: int, steps: Sequence[Step] = ()) -> None:
        """Args: ``origin_ns``: of the raw clock, which is followed for an hour; ``steps``: all."""
        own = sorted(step.at_ns for step in steps if step.host == host)
        by = {step.at_ns: step.by_ns for step in steps if step.host == host}
        self._stepped_ns = np.array(own, np.int64)
        self._by = np.concatenate(([0], np.cumsum([by[at] for at in own]))).astype(np.int64)
        rng = np.random.default_rng((seed, host))
        grid = LONGEST_S * 10**9 // GRID_NS
        self._origin = origin_ns
        self._offset = int(rng.integers(-MOST_OFFSET_NS, MOST_OFFSET_NS))
        noise = rng.normal(0, WANDER * np.sqrt(GRID_NS / 1e9), grid)
        rates = float(rng.uniform(-RATE, RATE)) + np.cumsum(noise)
        self._grid = np.arange(grid + 1) * float(GRID_NS)
        self._gained = np.concatenate(([0.0], np.cumsum(rates) * GRID_NS))

    def of(self, raw: Ints) -> Ints:
        """What it shows when the raw clock shows these."""
        since = raw - self._origin
        gained = np.interp(since.astype(float), self._grid, self._gained)
        stepped = self._by[self._stepped_ns.searchsorted(raw, side="right")]
        shown: Ints = raw + self._offset + np.rint(gained).astype(np.int64) + stepped
        return shown

    def at(self, raw_ns: int) -> int:
        """The same for one moment."""
        return int(self.of(np.array([raw_ns], np.int64))[0])


class VirtualClocks:
    """For a clock service (`fabricd.clock.service.Clocks`)."""

    def __init__(self, seed: int, host: int, origin_ns: int, steps: Sequence[Step] = ()) -> None:
        """Args: as of `VirtualClock`; ``host`` is this one."""
        self._clock = cache(lambda number: VirtualClock(seed, number, origin_ns, steps))
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
