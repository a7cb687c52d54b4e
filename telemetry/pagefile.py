"""One stats page as a file: checked when it is opened, read by ``pread`` into private memory.

Never maps a page (a truncated mapping is a SIGBUS), never follows a link, never blocks on a FIFO.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from telemetry.statslayout import (
    EVENT_SIZE,
    EVENTS_AT,
    HEADER_FIELDS,
    MAX_EVENTS,
    PAGE_SIZE,
    offsets,
)
from telemetry.statspage import (
    EventBatch,
    StatsPage,
    StatsPageError,
    parse,
    parse_events,
    sequence,
)

_EVENT_COUNT_AT = offsets(HEADER_FIELDS)["event_count"]


class PageFile:
    """One opened page. The descriptor keeps the very file that was checked."""

    def __init__(self, path: Path) -> None:
        """Open and check type, links and size.

        Raises:
            StatsPageError: reason open, type, links, size.
        """
        self.path = path
        try:
            directory = os.open(
                path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                self._fd = os.open(
                    path.name,
                    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY,
                    dir_fd=directory,
                )
            finally:
                os.close(directory)
        except FileNotFoundError:
            raise StatsPageError("gone") from None
        except OSError as error:
            reason = "type" if error.errno == errno.ELOOP else "open"
            raise StatsPageError(reason, error.strerror or "") from error
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise StatsPageError("type")
            if status.st_nlink > 1:
                raise StatsPageError("links", str(status.st_nlink))
            if status.st_size != PAGE_SIZE:
                raise StatsPageError("size", str(status.st_size))
        except BaseException:
            os.close(self._fd)
            raise
        self.uid = status.st_uid
        self.inode = (status.st_dev, status.st_ino)

    def page(self, *, groups: bool = False) -> StatsPage:
        """A consistent copy of the page but its events, by one look (seqlock).

        A page that is being written at that moment is refused as torn, not waited for: the
        writer may be a hostile one that never rests. Its next scan finds an honest one whole.

        Args:
            groups: the comm groups, too.

        Raises:
            StatsPageError: as `telemetry.statspage.parse`, torn included.
        """
        before = sequence(self._pread(16, 0))
        if before % 2:
            raise StatsPageError("torn")
        data = self._pread(PAGE_SIZE, 0)
        if not before == sequence(data) == sequence(self._pread(16, 0)):
            raise StatsPageError("torn")
        return parse(data, groups=groups)

    def abandoned_page(self) -> StatsPage:
        """Header and rails of a writer that ended while it wrote: nothing changes them any more.

        Raises:
            StatsPageError: as `telemetry.statspage.parse`, but for torn.
        """
        data = bytearray(self._pread(PAGE_SIZE, 0))
        data[8] &= 0xFE  # The seqlock's lowest bit says that it is being written.
        return parse(bytes(data))

    def events(self, since: int, rails: int) -> EventBatch:
        """Events from index ``since`` on.

        Raises:
            StatsPageError: as `telemetry.statspage.parse_events`.
        """
        count = int.from_bytes(self._pread(8, _EVENT_COUNT_AT), "little")
        if count == since:
            return EventBatch((), since)
        size = MAX_EVENTS * EVENT_SIZE
        ring, again = self._pread(size, EVENTS_AT), self._pread(size, EVENTS_AT)
        return parse_events(ring, again, since=since, count=count, rails=rails)

    def close(self) -> None:
        """Close; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> PageFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pread(self, size: int, at: int) -> bytes:
        try:
            data = os.pread(self._fd, size, at)
        except OSError as error:
            raise StatsPageError("read", error.strerror or "") from error
        if len(data) != size:
            raise StatsPageError("short", f"{len(data)} of {size}")
        return data
