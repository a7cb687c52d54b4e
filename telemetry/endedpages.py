"""When the stats page of a process that is gone may be removed. Pure.

A process that ends without finalizing (``kill -9``; net plugin ABI v8 to v10 has no finalize)
leaves its page behind. It is removed when

* nothing of it changed any more for the grace time: whatever it said was read that long ago, and
* what was read is stored (the caller's ``settled``), and
* no process of that pid and owner is there. One that is stopped is.

A pid is the writer's: in another pid namespace it says nothing here, and a frozen container looks
like a dead one. So a page whose process was never seen in this namespace has a much longer grace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from telemetry.statsdir import ProcessPage

GRACE_NS = 60 * 10**9
UNSEEN_GRACE_NS = 3_600 * 10**9


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a page after it was looked at."""

    heartbeat_ns: int
    next_index: int
    """Of the events read."""
    since_ns: int
    """The process is gone and nothing changed since; CLOCK_MONOTONIC."""
    gone: bool
    here: bool
    """The process was seen in this pid namespace at some time."""


def look(before: Look | None, process: ProcessPage, next_index: int, now_ns: int) -> Look:
    """Look at a page once more.

    Args:
        before: the last look at it by this daemon; None: there was none.
        process: the page, as read now.
        next_index: of the events read from it, those of this time included.
        now_ns: CLOCK_MONOTONIC.
    """
    gone = not process.alive and not process.seen
    heartbeat = process.page.heartbeat_ns
    same = (
        before is not None
        and before.gone
        and gone
        and (before.heartbeat_ns, before.next_index) == (heartbeat, next_index)
    )
    return Look(
        heartbeat_ns=heartbeat,
        next_index=next_index,
        since_ns=before.since_ns if before is not None and same else now_ns,
        gone=gone,
        here=process.seen or (before is not None and before.here),
    )


def may_remove(seen: Look, now_ns: int, *, settled: bool) -> bool:
    """Whether the page may be removed.

    Args:
        seen: the look of now.
        now_ns: CLOCK_MONOTONIC.
        settled: everything read from pages up to now is stored.
    """
    grace = GRACE_NS if seen.here else UNSEEN_GRACE_NS
    return settled and seen.gone and now_ns - seen.since_ns >= grace


class EndedPages:
    """Remembers the looks at all pages.

    Attributes:
        changed: the last update found a process gone, or something new of one.
    """

    def __init__(self) -> None:
        self.changed = False
        self._looks: dict[str, Look] = {}

    def update(
        self, pages: Iterable[tuple[ProcessPage, int]], now_ns: int, *, settled: bool
    ) -> list[ProcessPage]:
        """Take pages as read now, each with its next event index; returns what may be removed."""
        out = []
        self.changed = False
        for process, next_index in pages:
            name = process.name
            seen = look(self._looks.get(name), process, next_index, now_ns)
            self._looks[name] = seen
            self.changed |= seen.gone and seen.since_ns == now_ns
            if may_remove(seen, now_ns, settled=settled):
                out.append(process)
        return out

    def keep(self, names: Iterable[str]) -> None:
        """Forget all pages but these."""
        wanted = set(names)
        self._looks = {name: seen for name, seen in self._looks.items() if name in wanted}
