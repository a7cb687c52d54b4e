"""What the timeline says of peers that ended paths by intent: one row a peer, not one a path. Pure.

The prober knows a bye (`prober/src/core/wire.h`), and the engine takes such silence for nothing.
This only reports it, once it has been the same twice in a row: a peer sends byes path by path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fabricd.detect.silence import PathView

Gone = Mapping[str, frozenset[int]]
"""Peer → links (indices) on which it sent a bye."""


class ByeTracker:
    """Remembers which byes were reported."""

    def __init__(self) -> None:
        self.reported: Gone = {}
        self._seen: Gone = {}

    def update(self, views: Iterable[PathView]) -> list[tuple[str, frozenset[int]]]:
        """What is new: (peer, links on which it is silent by intent; empty: it probes again)."""
        seen: dict[str, frozenset[int]] = {}
        for view in views:
            if view.gone:
                seen[view.peer] = seen.get(view.peer, frozenset()) | {view.link}
        steady = seen == self._seen
        self._seen = seen
        if not steady or seen == self.reported:
            return []
        peers = sorted(set(seen) | set(self.reported))
        none: frozenset[int] = frozenset()
        news = [(p, seen.get(p, none)) for p in peers if seen.get(p) != self.reported.get(p)]
        self.reported = seen
        return news

    def reset(self) -> None:
        """The paths are others now, and so are the indices."""
        self.reported = self._seen = {}
