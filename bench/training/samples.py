"""Which samples a rank trains on: a shuffled epoch, cut into one batch per rank and step."""

from __future__ import annotations

import functools
import random
from typing import Any

SAMPLES = 4096
BATCH = 8


def samples_of(step: int, rank: int, world: int) -> tuple[int, ...]:
    """Indices of the samples of one rank in one step: ``BATCH`` of them. Pure.

    Each epoch is a permutation of its own; a remainder that fills no step is left out.
    """
    steps = SAMPLES // (BATCH * world)
    epoch, at = divmod(step, steps)
    start = (at * world + rank) * BATCH
    return _permutation(epoch)[start : start + BATCH]


@functools.lru_cache(maxsize=2)
def _permutation(epoch: int) -> tuple[int, ...]:
    return tuple(random.Random(epoch).sample(range(SAMPLES), SAMPLES))


class Sampler:
    """The position in the data: it moves on with each batch that is taken."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._position = 0

    def take(self, rank: int) -> tuple[int, ...]:
        """The next batch of ``rank``."""
        taken = samples_of(self._position, rank, self._world)
        self._position += 1
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the position of ``state``."""
        self._position = state["position"]
