"""A host's clock in virtual time."""

from __future__ import annotations

import math

import numpy as np

from clocksync.pair.model import SECOND
from clocksync.pair.trains import Ints

GRID_NS = SECOND // 20
"""The rate changes so often."""
BLOCK = 1024
WANDER = 1e-9
"""Of an uncompensated crystal, per root of a second."""
RATE = 30e-6


class Oscillator:
    """A rate that is off, and wanders (random-walk frequency); looked at at any true time."""

    def __init__(self, rng: np.random.Generator, wander: float = WANDER) -> None:
        """Args: ``rng`` gives a seed and is not kept: when the clock is looked at changes nothing.

        ``wander``: per root of a second.
        """
        self._rng = np.random.default_rng(int(rng.integers(2**62)))
        self._wander = wander * math.sqrt(GRID_NS / SECOND)
        self._start = int(self._rng.integers(1, 10**15))
        self._last = float(self._rng.uniform(-RATE, RATE))
        self._rates: list[float] = []
        self._gained = [0.0]
        self._arrays = np.empty(0), np.empty(0)
        self.stepped_ns = 0
        """By so much it was set, all told."""

    def _grow(self, cell: int) -> None:
        while len(self._rates) <= cell:
            rates = self._last + np.cumsum(self._rng.normal(0, self._wander, BLOCK))
            gained = self._gained[-1] + np.cumsum(rates * GRID_NS)
            self._last = float(rates[-1])
            self._rates += rates.tolist()
            self._gained += gained.tolist()
            self._arrays = np.array(self._rates), np.array(self._gained)

    def raw(self, true_ns: int) -> int:
        """What it shows."""
        cell, rest = divmod(true_ns, GRID_NS)
        if cell >= len(self._rates):
            self._grow(cell)
        gained = math.floor(self._gained[cell] + self._rates[cell] * rest)
        return self._start + self.stepped_ns + true_ns + gained

    def raws(self, true_ns: Ints) -> Ints:
        """The same of many moments at once."""
        cell, rest = np.divmod(true_ns, GRID_NS)
        if len(cell):
            self._grow(int(cell.max()))
        rates, gained = self._arrays
        more = np.floor(gained[cell] + rates[cell] * rest).astype(np.int64)
        shown: Ints = true_ns + more + (self._start + self.stepped_ns)
        return shown

    def rate(self, true_ns: int) -> float:
        """By how much it is fast then, ns/ns."""
        cell = true_ns // GRID_NS
        self._grow(cell)
        return self._rates[cell]

    def step(self, ns: int) -> None:
        """Somebody set it."""
        self.stepped_ns += ns
