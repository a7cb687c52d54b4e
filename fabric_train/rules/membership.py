"""Which process holds which rank: a pure function of the live processes and the last generation.

A generation is one assignment of processes to ranks. Survivors keep their ranks and a spare takes
an empty rank, so the world size and the order of every reduction stay as they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    """Process ``slots[r]`` holds rank ``r``.

    ``number`` grows by one with each assignment of a job, also with one that no rank ever reached.
    A process identity names one run of one process and is never used again.
    """

    number: int
    slots: tuple[str, ...]

    @property
    def world(self) -> int:
        """Ranks of the job; the same in all its generations."""
        return len(self.slots)

    def rank_of(self, process: str) -> int | None:
        """The rank of ``process``; None when it has none in this generation."""
        return self.slots.index(process) if process in self.slots else None


class NotEnoughSparesError(Exception):
    """Ranks stay empty: ``ranks`` names them."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        super().__init__(f"no spare for rank {', '.join(map(str, self.ranks))}")


def first_generation(processes: Sequence[str]) -> Generation:
    """Generation 1: rank ``r`` is ``processes[r]``; raises ``ValueError`` for doubles."""
    if len(set(processes)) != len(processes) or not processes:
        raise ValueError(f"each rank needs a process of its own: {list(processes)}")
    return Generation(1, tuple(processes))


def next_generation(
    previous: Generation,
    live: Collection[str],
    spares: Sequence[str],
    early: Mapping[str, int] | None = None,
) -> Generation:
    """Fill the ranks whose process is not in ``live`` with ``spares``, in their order.

    ``spares`` is ordered by preference. A process that already holds a rank is no spare. Those in
    ``early`` have built their model for one rank: they are its first choice, and take no other.
    Raises ``NotEnoughSparesError`` when a rank would stay empty; nothing is assigned then.
    """
    built = early or {}
    waiting = [spare for spare in dict.fromkeys(spares) if previous.rank_of(spare) is None]
    own = {built[spare]: spare for spare in reversed(waiting) if spare in built}
    others = iter([spare for spare in waiting if spare not in built])
    slots = list(previous.slots)
    missing = []
    for rank, process in enumerate(previous.slots):
        if process in live:
            continue
        spare = own.get(rank) or next(others, None)
        if spare is None:
            missing.append(rank)
        else:
            slots[rank] = spare
    if missing:
        raise NotEnoughSparesError(missing)
    return Generation(previous.number + 1, tuple(slots))
