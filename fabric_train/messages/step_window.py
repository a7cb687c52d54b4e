"""What a rank says of its own time in a window of steps: ``fabric_train.rank.own_time``. Pure."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = 8
MOST = 1 << 62
WINDOW_S, LARGE_WINDOW_S = 12.0, 30.0
LARGE_WORLD = 2048
"""From so many ranks on a window is long: the documents of such a job are, too."""


def window_s(world: int) -> float:
    """Seconds that a window of a job of ``world`` ranks has at least."""
    return WINDOW_S if world < LARGE_WORLD else LARGE_WINDOW_S


def patience_s(world: int) -> float:
    """Seconds that a document may wait that has a new window."""
    return window_s(world) / 3


@dataclass(frozen=True)
class StepWindow:
    """Own times of one rank in ``steps`` steps, the last of which made it ``last`` applied steps.

    ``wall_ns``: from the gate before the first step to that of the last. ``blocks_ns``: own time of
    a step, `BLOCKS` times: the geometric mean over the steps of one eighth of the window.
    """

    generation: int
    last: int
    steps: int
    wall_ns: int
    blocks_ns: list[int]

    @property
    def is_sound(self) -> bool:
        """Its numbers are such as a rank can have measured."""
        return (
            len(self.blocks_ns) == BLOCKS
            and all(0 < one < MOST for one in (*self.blocks_ns, self.wall_ns))
            and BLOCKS <= self.steps <= self.last < MOST
            and 0 <= self.generation < MOST
        )
