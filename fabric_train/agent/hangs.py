"""Which ranks of a job hang, from what their agents see of each. Pure.

*Frozen*: a rank is stopped by a signal, or one call has held its interpreter's lock (GIL) for some
seconds. That is a fault as long as more than half of the other ranks are not frozen: a scheduler
that suspends a job stops all of its ranks.

*Silent*: a rank's interpreter lives, and it works without a collective for long. That is no fault
yet: a rank that evaluates does so, too, and all ranks may. It is one when more than half of the
other ranks wait, as their agents see, for at least half as long. A rank in a collective that does
not end, as one whose GPU hangs, waits like all others: it is not found by this.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fabric_train.messages.documents import STANDS, WAITS

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Stillness:
    """What an agent sees of one rank. ``still``: `STANDS`, `WAITS`, or "": it goes on.

    ``why``, for people: "" while it neither stands nor is frozen.
    """

    still: str = ""
    frozen: bool = False
    why: str = ""


def hung(ranks: Mapping[T, Stillness], count: int) -> set[T]:
    """Those of ``ranks`` that hang, in a job of ``count`` ranks. Of others nothing is known."""
    others = count - 1
    frozen = {one for one, seen in ranks.items() if seen.frozen}
    found: set[T] = set()
    if 2 * (len(ranks) - len(frozen)) > others:
        found |= frozen
    if 2 * sum(seen.still == WAITS for seen in ranks.values()) > others:
        found |= {one for one, seen in ranks.items() if seen.still == STANDS}
    return found
