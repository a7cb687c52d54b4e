"""Decides when a changed ``peers_file`` is read again. Pure."""

from __future__ import annotations

from fabricd.config.peers_file import FileState

SETTLE_NS = 900_000_000
"""A file that is being written changes all the time; one that rests so long is whole."""


class PeersWatch:
    """Compares the versions of one file that somebody looks at once a second."""

    def __init__(self) -> None:
        self._name = ""
        self._last: FileState | None = None
        self._since_ns = 0
        self._asked: FileState | None = None
        """The version for which a read was asked last, good or bad."""

    def update(self, name: str, state: FileState, read: FileState | None, now: int) -> bool:
        """Take what is there now; True: it is to be read. A version is asked for once.

        Args:
            name: of the file, which a reload may change.
            state: of the file.
            read: the version that a reload read last.
            now: CLOCK_MONOTONIC ns.
        """
        if name != self._name:
            self._name, self._last, self._asked = name, None, None
        if state != self._last:
            self._last, self._since_ns = state, now
            if state != self._asked:
                self._asked = None  # An older version that comes back counts anew.
        if state in (read, self._asked) or now - self._since_ns < SETTLE_NS:
            return False
        self._asked = state
        return True
