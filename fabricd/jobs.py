"""Jobs' stats pages: totals for the metrics, PLUGIN events for the timeline; removes ended ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from telemetry.endedpages import EndedPages
from telemetry.events import Event, EventKind, JsonScalar
from telemetry.jobtotals import JobTotals
from telemetry.statsdir import ProcessPage, StatsDirectory
from telemetry.statspage import EventBatch, PathDownReason, StatsEvent, StatsEventKind

_MAX_EVENTS = 200
"""PLUGIN rows of one scan: pages are hostile and must not flood the timeline."""

_Found = list[tuple[ProcessPage, EventBatch]]


class Jobs:
    """Reads the stats directory now and then.

    Attributes:
        suppressed: plugin events not recorded because there were too many at once.
        scanned_ns: CLOCK_MONOTONIC up to which events were seen; for the next daemon's `restore`.
        removed: pages of ended processes that were removed.
        looked: called with the pages of each scan.
    """

    def __init__(self, directory: Path, netdevs: Iterable[str], now: int) -> None:
        self.totals = JobTotals(netdevs)
        self.suppressed = 0
        self.removed = 0
        self.looked: Callable[[Sequence[ProcessPage]], None] = lambda _: None
        self.scanned_ns = now
        self._since_ns = now
        """Older events are an earlier daemon's. Newer ones come once each, by their pages' own
        cursors: pages show events late, so no page's newest says anything of another's."""
        self._ended = EndedPages()
        self._directory = StatsDirectory(directory)

    @property
    def refused(self) -> int:
        """Pages and counters refused."""
        return sum(self._directory.refused.values()) + self.totals.refused

    @property
    def ended(self) -> bool:
        """The last scan found a process gone: what it did must be stored before its page goes."""
        return self._ended.changed

    async def scan(self, *, settled: bool, now: int | None = None) -> list[Event]:
        """Read all pages; returns what their plugins did since the last scan.

        Args:
            settled: all that earlier scans returned is stored; only then are pages removed.
            now: CLOCK_MONOTONIC; None: as the clock says.
        """
        now = time.monotonic_ns() if now is None else now
        # In a thread: a hostile page may keep its reader waiting.
        found = await asyncio.to_thread(self._read, now)
        pages = [page for page, _ in found]
        self.totals.update(pages, now)
        self.looked(pages)
        wall = time.time_ns() - now
        events: list[Event] = []
        for page, batch in found:
            new = [item for item in batch.events if self._since_ns < item.time_ns <= now + 10**9]
            room = _MAX_EVENTS - len(events)
            self.suppressed += max(0, len(new) - room)
            events += [_event(page, item, wall) for item in new[:room]]
            self.scanned_ns = max([self.scanned_ns, *(min(item.time_ns, now) for item in new)])
        looks = [(page, batch.next_index) for page, batch in found]
        if leftover := self._ended.update(looks, now, settled=settled):
            await asyncio.to_thread(self._remove, leftover)
        self._ended.keep(self._directory.names)
        return events

    def configure(self, netdevs: Iterable[str]) -> None:
        """Other links. What was seen stays seen, also by a scan that is in a thread now."""
        self.totals.configure(netdevs)

    def restore(self, document: object) -> None:
        """Go on from an earlier daemon's totals; a document that makes no sense is ignored."""
        try:
            if isinstance(document, dict):
                self.totals.restore(document["totals"])
                self.scanned_ns = self._since_ns = int(document["scanned_ns"])
        except (ValueError, KeyError, TypeError) as error:
            structlog.get_logger().warning("job totals not restored", error=str(error))

    def save(self) -> dict[str, object]:
        """The document for `restore`."""
        return {"totals": self.totals.to_state(), "scanned_ns": self.scanned_ns}

    def _read(self, now: int) -> _Found:
        return [(page, self._directory.new_events(page)) for page in self._directory.scan(now)]

    def _remove(self, pages: list[ProcessPage]) -> None:
        count = sum(self._directory.remove(page) for page in pages)
        self.removed += count
        if count:
            structlog.get_logger().info("stats pages of ended processes removed", count=count)


def prepare_directory(path: Path, mode: int) -> None:
    """Make a directory with a mode; one that belongs to somebody else keeps its own."""
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):
        path.chmod(mode)


STATS_MODE = 0o1733
"""Any user's job may put its page there, and take only its own away; only the owner lists it."""


def prepare_stats_directory(path: Path, uid: int | None = None) -> bool:
    """Make the stats directory, whose pages this user and no other job reads.

    A default ACL gives this user the right to read whatever is made there (and, for a job's own
    subdirectory, to list it). Setting it takes neither a capability nor a group, and unlike the
    setgid bit the unit's RestrictSUIDSGID allows it. A file system without ACLs gets the setgid
    bit, so that pages belong to this process's group.

    Args:
        path: the directory.
        uid: who may read; None: this process's user.

    Returns:
        False when only root will be able to read the pages.
    """
    prepare_directory(path, STATS_MODE)
    try:
        os.setxattr(
            path, "system.posix_acl_default", _default_acl(os.geteuid() if uid is None else uid)
        )
        return True
    except OSError as error:
        if error.errno == errno.EPERM:
            return os.geteuid() == 0  # somebody else's directory
    try:
        path.chmod(0o2000 | STATS_MODE)
    except OSError:
        return os.geteuid() == 0
    return True


def _default_acl(uid: int) -> bytes:
    """``u::rwx,u:UID:r-x,g::---,m::r-x,o::---`` as the kernel has it (linux/posix_acl_xattr.h)."""
    unnamed = 0xFFFFFFFF
    entries = ((0x01, 7, unnamed), (0x02, 5, uid), (0x04, 0, unnamed), (0x10, 5, unnamed),
               (0x20, 0, unnamed))  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def _event(process: ProcessPage, item: StatsEvent, wall_offset: int) -> Event:
    rails = process.page.rails
    local = item.local_rail
    data: dict[str, JsonScalar] = {
        "job": process.page.job,
        "pid": process.page.pid,
        "detail": item.detail,
    }
    if item.kind is StatsEventKind.PATH_DOWN and item.detail in set(PathDownReason):
        data["why"] = PathDownReason(item.detail).name.lower()
    return Event(
        EventKind.PLUGIN,
        wall_offset + item.time_ns,
        item.time_ns,
        link=rails[local].netdev if local is not None and local < len(rails) else "",
        reason=item.kind.name.lower(),
        data=data,
    )
