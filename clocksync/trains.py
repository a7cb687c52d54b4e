"""From stamps of trains to the points of a fit: which packets met no queue. Pure.

A train is three packets back to back. The first finds cold caches and a sleeping receiver and is
thrown away. The other two keep their spacing unless something came between them, so a train whose
spacing arrived as it left met no queue that was filling or draining just then (the coded probes of
Huygens, Geng et al., NSDI 2018). What "as it left" means differs by three orders of magnitude
between a NIC's stamps and those of a busy virtual machine, so each path learns it: twice the lower
quartile of what it sees, which a queue on up to three quarters of the trains does not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LEAST_EPSILON_NS = 8.0
"""A NIC's stamps have steps of 1 to 8 ns."""
MOST_EPSILON_NS = 20_000.0
QUARTILE = 0.25
FACTOR = 2.0
FEWEST = 8
"""Trains that ε is learned from."""
MEMORY = 0.25
"""Weight of the newest window in ε."""


@dataclass(frozen=True, slots=True)
class Packets:
    """One direction of a path in a window, each packet once, ordered by sequence."""

    seq: Ints
    position: Ints
    """1 to 3 in a train, 0 of a single packet."""
    sent_ns: Ints
    """Transmit stamp, the sender's clock."""
    heard_ns: Ints
    """Receive stamp, the receiver's clock."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Packets worth a point."""

    chosen: NDArray[np.intp]
    """Indices into the window's packets: second and third of each train that was kept."""
    trains: int
    """Whole ones."""
    kept: int

    @property
    def rate(self) -> float:
        """Share of the trains that were kept; 0 without any."""
        return self.kept / self.trains if self.trains else 0.0


@dataclass(slots=True)
class TrainFilter:
    """Of one direction of one path."""

    epsilon_ns: float = 0.0
    """0: not learned yet."""

    def pick(self, packets: Packets) -> Accepted:
        """The packets of the trains that kept their spacing."""
        second = np.flatnonzero(
            (packets.position[:-1] == 2)
            & (packets.position[1:] == 3)
            & (packets.seq[1:] - packets.seq[:-1] == 1)
        )
        if not len(second):
            return Accepted(second, 0, 0)
        left = packets.sent_ns[second + 1] - packets.sent_ns[second]
        came = packets.heard_ns[second + 1] - packets.heard_ns[second]
        change = np.abs(came - left)
        self._learn(change)
        kept = second[change <= self.epsilon_ns]
        chosen = np.concatenate((kept, kept + 1))
        chosen.sort()
        return Accepted(chosen, len(second), len(kept))

    def _learn(self, change: Ints) -> None:
        if len(change) < FEWEST and self.epsilon_ns:
            return
        seen = FACTOR * float(np.quantile(change, QUARTILE))
        seen = min(max(seen, LEAST_EPSILON_NS), MOST_EPSILON_NS)
        self.epsilon_ns += (seen - self.epsilon_ns) * (MEMORY if self.epsilon_ns else 1.0)
