"""Stores the state documents, from which the next daemon goes on, soon after a change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fabricd.links.flaps import FlapLedger
from fabricd.timeline.recorder import Recorder

SAVE_NS = 20_000_000
"""From a change to the document that says so: after kill -9 the next daemon must know what was out,
and until then the steer page and the FLAP rows tell it. A storm of flaps is one document."""
KEEP_NS = 600 * 10**9
"""Learnt values change all the time; they are stored at least this often."""


class StateSaver:
    """Knows whether the stored documents are old. Times: CLOCK_MONOTONIC ns.

    Attributes:
        due_ns: when the documents have to be stored; 0: nothing urgent changed.
    """

    def __init__(
        self, recorder: Recorder, ledger: FlapLedger, document: Callable[[int], dict[str, Any]]
    ) -> None:
        """Args: ``document``: makes the daemon's document as of a time."""
        self.due_ns = 0
        self._recorder, self._ledger, self._document = recorder, ledger, document
        self._changed = True
        self._keep_ns = time.monotonic_ns() + KEEP_NS

    @property
    def settled(self) -> bool:
        """Whether everything that was recorded or marked as changed is stored."""
        return not self._changed and self._recorder.idle

    def mark_changed(self) -> None:
        """Store the documents at the next `save`."""
        self._changed = True

    def changed(self, now: int) -> None:
        """A link, a path or a weight changed: store the documents within `SAVE_NS`."""
        self._changed = True
        self.due_ns = self.due_ns or now + SAVE_NS

    def keep(self, now: int) -> None:
        """Have the next `save` store learnt values, once every `KEEP_NS`."""
        if now >= self._keep_ns:
            self._changed, self._keep_ns = True, now + KEEP_NS

    def save_if_due(self, now: int) -> None:
        """Queue the documents if it is time."""
        if self.due_ns and now >= self.due_ns:
            self.save()

    def save(self) -> None:
        """Queue the documents if anything changed since."""
        self.due_ns = 0
        if not self._changed:
            return
        now = time.monotonic_ns()
        put = self._recorder.put_state("carrier", self._ledger.save())
        # A queue that is full takes none: again at the next tick.
        self._changed = not (put and self._recorder.put_state("daemon", self._document(now)))
