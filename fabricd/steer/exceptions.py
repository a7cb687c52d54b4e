"""Which exceptions of paths stay off the steer page, for probes may take only so many rails. Pure.

`policy.refused_exceptions` says so for one moment. Where another rail flaps, its answer changes
with each flap: each change would give a dead path its weight back, or take it again. Here an
exception that was given up returns when nothing was against it for `CALM_NS`. All changes of one
exception are counted: within ``window_ns`` there are at most ``max_transitions``, as of a link
(`fabricd.links.damping`). What would be one more stays as it is. A path that is well again is given
back in any case: its own damping counts that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

CALM_NS = 10 * 10**9
"""As long as a link's probation."""

RailPeer = tuple[str, str]
"""(Netdev, peer) all of whose paths carry less than the link."""


@dataclass(slots=True)
class _Record:
    on_page: bool | None = None
    """None: the paths are well."""
    calm_ns: int | None = None
    """Given up: since when nothing is against it."""
    changed: deque[int] = field(default_factory=deque)
    """When what traffic may use changed, oldest first."""


class ExceptionLimiter:
    """Remembers what it decided.

    Attributes:
        refused: exceptions that stay off the page now.
    """

    def __init__(self) -> None:
        self.refused: frozenset[RailPeer] = frozenset()
        self._window_ns, self._most = 0, 0
        self._known: dict[RailPeer, _Record] = {}

    def configure(self, window_ns: int, max_transitions: int) -> None:
        """Take parameters; ``max_transitions`` 0: no limit."""
        self._window_ns, self._most = window_ns, max_transitions

    def update(
        self, wanted: Collection[RailPeer], refused: Collection[RailPeer], now: int
    ) -> int | None:
        """Decide anew; returns when (ns) to decide again though nothing changes.

        Args:
            wanted: all exceptions that there are reasons for.
            refused: those of them that are too many at this moment.
            now: CLOCK_MONOTONIC ns.
        """
        due: list[int] = []
        for key in wanted:
            record = self._known.setdefault(key, _Record())
            self._step(record, key in refused, now)
            if record.calm_ns is not None and self._room(record, 2, now):
                due.append(record.calm_ns + CALM_NS)
        for key in [key for key in self._known if key not in wanted]:
            record = self._known[key]
            if record.on_page:
                self._note(record, now)
            record.on_page, record.calm_ns = None, None
            if not self._count(record, now):
                del self._known[key]
        self.refused = frozenset(k for k, r in self._known.items() if r.on_page is False)
        return min(due, default=None)

    def _step(self, record: _Record, refused: bool, now: int) -> None:
        if record.on_page is None:
            record.on_page = not refused
            if record.on_page:
                self._note(record, now)
        elif record.on_page:
            if refused and self._room(record, 1, now):
                record.on_page = False
                self._note(record, now)
        elif refused:
            record.calm_ns = None
        elif record.calm_ns is None:
            record.calm_ns = now
        elif now >= record.calm_ns + CALM_NS and self._room(record, 2, now):
            # With room for its end. Until then the plugin's own detectors avoid the path.
            record.on_page, record.calm_ns = True, None
            self._note(record, now)

    def _note(self, record: _Record, now: int) -> None:
        if self._most:
            record.changed.append(now)

    def _count(self, record: _Record, now: int) -> int:
        while record.changed and record.changed[0] <= now - self._window_ns:
            record.changed.popleft()
        return len(record.changed)

    def _room(self, record: _Record, changes: int, now: int) -> bool:
        return not self._most or self._count(record, now) + changes <= self._most
