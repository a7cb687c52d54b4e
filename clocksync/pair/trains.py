"""From stamps of trains to the points of a fit: which packets met no queue. Pure.

A train is three packets back to back. The first finds cold caches and a sleeping receiver and is
thrown away. The other two keep their spacing unless something came between them, so a train whose
spacing arrived as it left met no queue that was filling or draining just then (the coded probes of
Huygens, Geng et al., NSDI 2018). What "as it left" means differs by three orders of magnitude
between a NIC's stamps and those of a busy virtual machine, so each path learns it: twice the lower
quartile of what it sees, which a queue on up to three quarters of the trains does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
"""Weight in ε of the newest ``LEARNED`` trains."""
LEARNED = 10


class Trains(NamedTuple):
    """Trains of one direction, oldest first, of one path or of several one after another."""

    sent_ns: Ints
    """Shape (n, 2): transmit stamps of the second and third packets, the sender's clock."""
    heard_ns: Ints
    """Shape (n, 2): their receive stamps, the receiver's clock."""

    def changes(self) -> Ints:
        """Shape (n,): by how much the spacing of each arrived otherwise than it left, ns."""
        sent, heard = self.sent_ns, self.heard_ns
        return np.abs((heard[:, 1] - heard[:, 0]) - (sent[:, 1] - sent[:, 0]))


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

    def trains(self) -> Trains:
        """Those of which second and third packet are here."""
        pairs = whole(self.seq, self.position)[:, None] + np.arange(2)
        return Trains(self.sent_ns[pairs], self.heard_ns[pairs])


def whole(seq: Ints, position: Ints) -> NDArray[np.intp]:
    """Where second packets are that their third follows.

    Args:
        seq: shape (n,), in order.
        position: shape (n,): in the train.
    """
    follows = (position[:-1] == 2) & (position[1:] == 3) & (seq[1:] - seq[:-1] == 1)
    return np.flatnonzero(follows)


@dataclass(slots=True)
class TrainFilter:
    """Of one direction of one path."""

    epsilon_ns: float = 0.0
    """A train whose spacing changed by more is left out; 0: not learned yet."""
    _seen: list[int] = field(default_factory=list)

    def learn(self, changes: Sequence[int]) -> float:
        """ε, with what these trains teach; few are kept until there are enough.

        Args:
            changes: of the spacings (`Trains.changes`).
        """
        seen = self._seen
        seen += changes
        count = len(seen)
        if (count < FEWEST and self.epsilon_ns) or not count:
            return self.epsilon_ns
        seen.sort()
        low, part = divmod(QUARTILE * (count - 1), 1)
        at = int(low)
        quartile = seen[at] + part * (seen[at + 1] - seen[at]) if part else seen[at]
        new = min(max(FACTOR * quartile, LEAST_EPSILON_NS), MOST_EPSILON_NS)
        known = (1 - MEMORY) ** (count / LEARNED) if self.epsilon_ns else 0.0
        self.epsilon_ns = new + known * (self.epsilon_ns - new)
        seen.clear()
        return self.epsilon_ns
