"""Reads the stats pages of all jobs of a host: ``$RUN/stats/[JOB/]<pid>-<start_ns>.page``.

Never maps a page (a truncated mapping is a SIGBUS), never follows a link, never blocks on a FIFO.
What is not a page is left alone; `telemetry.endedpages` says which pages are removed. Directories
are read with a bound on their entries, since anybody may write there (mode 1733). Those of one
level below are for jobs of one user that are to be kept apart: each sees only its own
(docs/install.md).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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

MAX_PAGES = 4096
"""Entries looked at in one scan, and pages read."""
MAX_SUBDIRECTORIES = 256
STALE_NS = 5 * 10**9
"""A heartbeat older than this, and no such process: it has ended."""
FORGOTTEN_NS = 60 * 10**9
"""A heartbeat older than this counts as ended whatever has that pid now."""
ENDED_RECHECK_NS = 10 * 10**9
_NAME = re.compile(r"(\d{1,10})-(\d{1,20})\.page\Z")
_SUBDIRECTORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_SEQLOCK_TRIES = 64
_EVENT_COUNT_AT = offsets(HEADER_FIELDS)["event_count"]


@dataclass(frozen=True, slots=True)
class ProcessPage:
    """A page and what is known about its process."""

    path: Path
    uid: int
    page: StatsPage
    alive: bool
    seen: bool = True
    """A process of that pid and owner is there, in this pid namespace."""
    inode: tuple[int, int] = (0, 0)
    """(device, number) of the file that was read."""
    subdirectory: str = ""

    @property
    def name(self) -> str:
        """Of the page within the stats directory."""
        return f"{self.subdirectory}/{self.path.name}" if self.subdirectory else self.path.name


def alive(now_ns: int, heartbeat_ns: int, *, process_seen: bool) -> bool:
    """Whether a page's process still runs, from its heartbeat (CLOCK_MONOTONIC) and /proc.

    A stopped process is seen but does not beat; one in another pid namespace beats but is not seen.
    """
    age = now_ns - heartbeat_ns
    if age > FORGOTTEN_NS:
        return False
    return process_seen or age <= STALE_NS


def process_seen(pid: int, uid: int, start_ns: int, *, proc: Path = Path("/proc")) -> bool:
    """Whether a process of that pid and owner exists that began before ``start_ns``.

    proc(5): field 22 of ``stat`` is the start in clock ticks since boot (CLOCK_BOOTTIME).
    """
    try:
        if (proc / str(pid)).stat().st_uid not in (uid, 0):
            return False
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        after_name = fields.rsplit(")", 1)[1].split()
        if after_name[0] in ("Z", "X"):
            return False
        ticks = int(after_name[19])
    except (OSError, ValueError, IndexError):
        return False
    began_boottime = ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    # One tick and a little: the start is rounded down to a tick.
    return began_boottime - suspended <= start_ns + 50_000_000


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
            raise StatsPageError("open", error.strerror or "") from error
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
        """A consistent copy of the page but its events (seqlock, retried while it is written).

        Args:
            groups: the comm groups, too.

        Raises:
            StatsPageError: as `telemetry.statspage.parse`; torn when the writer never rests.
        """
        for attempt in range(_SEQLOCK_TRIES):
            if attempt > 8:
                time.sleep(0.00005)
            before = self._pread(16, 0)
            data = self._pread(PAGE_SIZE, 0)
            after = self._pread(16, 0)
            seq = sequence(before)
            if seq % 2 == 0 and seq == sequence(data) == sequence(after):
                return parse(data, groups=groups)
        raise StatsPageError("torn")

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


def _pid_namespace() -> int:
    """Inode of this process's pid namespace; 0: not known."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF
    except OSError:
        return 0


class StatsDirectory:
    """Scans the directory; remembers event cursors and which processes have ended.

    Attributes:
        refused: how many times a page was refused, by reason, since the start.
        names: those that pages may have, as of the last scan.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        seen: Callable[[int, int, int], bool] = process_seen,
        groups: bool = False,
    ) -> None:
        """Nothing is read yet.

        Args:
            path: of the directory; it may not exist yet.
            seen: as `process_seen`.
            groups: the pages' comm groups, too.
        """
        self.path = Path(path)
        self.refused: Counter[str] = Counter()
        self.names: frozenset[str] = frozenset()
        self._seen = seen
        self._groups = groups
        self._pid_namespace = _pid_namespace()
        self._cursors: dict[str, int] = {}
        self._recheck_ns: dict[str, int] = {}

    def scan(self, now_ns: int) -> list[ProcessPage]:
        """All valid pages, of ended processes too while their page lies there (10 s apart).

        Args:
            now_ns: CLOCK_MONOTONIC.
        """
        out: list[ProcessPage] = []
        names = self._names()
        for name in names:
            if self._recheck_ns.get(name, 0) > now_ns:
                continue
            try:
                process = self._read(name, now_ns)
            except StatsPageError as error:
                if error.reason != "gone":
                    self.refused[error.reason] += 1
                continue
            out.append(process)
            if process.alive:
                self._recheck_ns.pop(name, None)
            else:
                self._recheck_ns[name] = now_ns + ENDED_RECHECK_NS
        self.names = frozenset(names)
        for table in (self._cursors, self._recheck_ns):
            for name in table.keys() - self.names:
                del table[name]
        return out

    def new_events(self, process: ProcessPage) -> EventBatch:
        """Events of that page not returned before; a page refused gives none."""
        name = process.name
        since = self._cursors.get(name, 0)
        try:
            with PageFile(process.path) as file:
                batch = file.events(since, len(process.page.rails))
        except StatsPageError as error:
            if error.reason != "gone":
                self.refused[error.reason] += 1
            return EventBatch((), since)
        self._cursors[name] = batch.next_index
        return batch

    def remove(self, process: ProcessPage) -> bool:
        """Remove a page; False when its name is another file's by now, or it may not be removed.

        Whoever swaps the file after the last look can only lose one of his own: in a directory of
        mode 1733 nobody can rename another user's file, nor put one in its place, and what lies in
        a job's subdirectory is that job's.
        """
        name = process.path.name
        try:
            directory = os.open(
                process.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            return False
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            same = (status.st_dev, status.st_ino) == process.inode
            if not same or not stat.S_ISREG(status.st_mode) or status.st_uid != process.uid:
                return False
            os.unlink(name, dir_fd=directory)
        except OSError:
            return False
        finally:
            os.close(directory)
        return True

    def _names(self) -> list[str]:
        names, subdirectories = self._entries(self.path, MAX_PAGES)
        for subdirectory in sorted(subdirectories)[:MAX_SUBDIRECTORIES]:
            found, deeper = self._entries(self.path / subdirectory, MAX_PAGES - len(names))
            names += [f"{subdirectory}/{name}" for name in found]
            self.refused["name"] += len(deeper)
        self.refused["too_many"] += max(0, len(subdirectories) - MAX_SUBDIRECTORIES)
        self.refused = +self.refused  # without the zeros
        return sorted(names)

    def _entries(self, path: Path, room: int) -> tuple[list[str], list[str]]:
        """Names of pages and of directories in a directory."""
        names: list[str] = []
        directories: list[str] = []
        try:
            listed = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return [], []
        except OSError:
            self.refused["open"] += 1
            return [], []
        try:
            with os.scandir(listed) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue  # being created
                    if len(names) + len(directories) >= room:
                        self.refused["too_many"] += 1
                        break
                    if _NAME.match(entry.name):
                        names.append(entry.name)
                    elif _SUBDIRECTORY.match(entry.name) and entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                    else:
                        self.refused["name"] += 1
        except OSError:
            self.refused["open"] += 1
        finally:
            os.close(listed)
        return names, directories

    def _read(self, name: str, now_ns: int) -> ProcessPage:
        with PageFile(self.path / name) as file:
            subdirectory, _, base = name.rpartition("/")
            pid, start_ns = (int(number) for number in base.removesuffix(".page").split("-"))
            try:
                page = file.page(groups=self._groups)
                seen = self._is_seen(page, pid, file.uid, start_ns)
            except StatsPageError as error:
                if error.reason != "torn":
                    raise
                page = file.abandoned_page()
                seen = self._is_seen(page, pid, file.uid, start_ns)
                if seen or alive(now_ns, page.heartbeat_ns, process_seen=False):
                    raise
            page = self._checked(base, page, now_ns)
            lives = alive(now_ns, page.heartbeat_ns, process_seen=seen)
            return ProcessPage(
                self.path / name, file.uid, page, lives, seen, file.inode, subdirectory
            )

    def _is_seen(self, page: StatsPage, pid: int, uid: int, start_ns: int) -> bool:
        """A pid of another pid namespace is some other process's here: 1 is everybody's init."""
        foreign = page.pid_namespace not in (0, self._pid_namespace)
        return not foreign and self._seen(pid, uid, start_ns)

    @staticmethod
    def _checked(name: str, page: StatsPage, now_ns: int) -> StatsPage:
        """The name's pid and start are the page's, and no time lies in the future."""
        if name != f"{page.pid}-{page.start_ns}.page":
            raise StatsPageError("name", f"{name} holds {page.pid}-{page.start_ns}")
        if max(page.start_ns, page.heartbeat_ns) > now_ns + 10**9:
            raise StatsPageError("future")
        return page
