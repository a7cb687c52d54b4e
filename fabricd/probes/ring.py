"""Typed reader over the prober's mapped ring file.

The file is created whole and renamed into place, and never truncated; still everything in it is
checked: a file that is short, of another version or inconsistent raises ``RingError`` when opened,
and a record or row that makes no sense later is counted in ``RingReader.corrupt`` and skipped.

Rules of the shared memory: one writer. A record is whole when its own index says so before and
after the copy; a row is guarded by a sequence that is odd while it is written.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from fabricd.probes.records import EventRecord, LinkRow, PathRow, ProbeSample, RingHeader


class RingError(Exception):
    """The ring file cannot be used; the message says why and names the file."""


class RingReader:
    """One reader with its own place in the event and sample rings. Not thread-safe."""

    lost_events: int
    """Events overwritten before this reader came to them."""
    lost_samples: int
    corrupt: int
    """Records and rows refused."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        """Map ``path``. Starts at the newest records, or with ``from_start`` at the oldest kept.

        Raises:
            RingError: missing, not a regular file, short, or not a ring of this version.
        """
        raise NotImplementedError

    def header(self) -> RingHeader:
        """The header as it is now; raises RingError when it is no longer sane."""
        raise NotImplementedError

    def links(self) -> list[LinkRow]:
        """All configured links, by index."""
        raise NotImplementedError

    def paths(self) -> list[PathRow]:
        """All configured paths, by index."""
        raise NotImplementedError

    def events(self, limit: int = 4096) -> list[EventRecord]:
        """New events since the last call, oldest first; overwritten ones add to lost_events."""
        raise NotImplementedError

    def samples(self, limit: int = 4096) -> list[ProbeSample]:
        """New samples since the last call, oldest first."""
        raise NotImplementedError

    def replaced(self) -> bool:
        """True when another file (a restarted prober's) now has the ring's name: open it anew."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
