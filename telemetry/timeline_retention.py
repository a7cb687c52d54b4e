"""Which rows of the timeline are too old. Pure but for what it asks of the file.

Rows of this boot age by the monotonic clock. Those of earlier boots age by the wall clock, unless
it was set since the last call, or would have nearly all of them go: a clock that is a year ahead,
or began in 2000, is no reason to lose evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DAY_NS = 86_400 * 10**9
JUMP_NS = 3_600 * 10**9
"""By more than that the wall clock was set between two prunes: this one does not go by it."""
NEARLY_ALL = 0.9
"""A pass that would delete so much of what earlier boots left likely goes by a wrong clock."""

Condition = tuple[str, tuple[object, ...]]
"""Of SQL, after WHERE, and its values."""
Read = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class OldRows:
    """What goes, and why the rest stays."""

    conditions: tuple[Condition, ...]
    kept: str = ""
    """Why rows of earlier boots stay though the wall clock says that they are old."""


class AgeLimit:
    """Remembers how the two clocks stood to each other."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        """CLOCK_REALTIME less CLOCK_MONOTONIC at the last call."""

    def old_rows(self, read: Read, boot: str, wall_ns: int, mono_ns: int, age_ns: int) -> OldRows:
        """The rows that are too old.

        Args:
            read: runs a query on the file.
            boot: of now.
            wall_ns: CLOCK_REALTIME.
            mono_ns: CLOCK_MONOTONIC.
            age_ns: what is older goes.
        """
        before, self._offset_ns = self._offset_ns, wall_ns - mono_ns
        own: Condition = "boot_id = ? AND mono_ns < ?", (boot, mono_ns - age_ns)
        if mono_ns > age_ns:  # This boot alone is older than that.
            return OldRows((own, ("boot_id != ?", (boot,))))
        others, limit = "boot_id != ?", wall_ns - age_ns
        # What was stored after a row that is young is younger than that: its clock was wrong.
        young = f"SELECT min(id) FROM events WHERE {others} AND wall_ns >= ? AND wall_ns <= ?"  # noqa: S608
        ((first,),) = read(young, (boot, limit, wall_ns + DAY_NS))
        old: Condition = f"{others} AND wall_ns < ?", (boot, limit)
        if first is not None:
            old = f"{old[0]} AND id < ?", (*old[1], first)
        ((count,),) = read(f"SELECT count(*) FROM events WHERE {old[0]}", old[1])  # noqa: S608
        if not count:
            return OldRows((own,))
        ((total,),) = read(f"SELECT count(*) FROM events WHERE {others}", (boot,))  # noqa: S608
        if before is not None and abs(self._offset_ns - before) > JUMP_NS:
            jump_s = (self._offset_ns - before) / 1e9
            return OldRows((own,), f"the wall clock was set by {jump_s:.0f} s")
        if count >= NEARLY_ALL * total:
            return OldRows(
                (own,), f"{count} of {total} rows of earlier boots would go by the wall clock"
            )
        return OldRows((own, old))
