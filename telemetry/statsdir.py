"""Reads the stats pages of all jobs of a host: ``$RUN/stats/[JOB/]<pid>-<start_ns>.page``.

Anybody may write there (mode 1733), so a scan has a time budget, each user a quota of pages, and
what is not a page is left alone; `telemetry.endedpages` says which pages are removed. The
directories one level below are for jobs of one user that are to be kept apart: each sees only its
own (docs/operate/install.md).
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from telemetry.pagefile import PageFile
from telemetry.statslisting import Listing
from telemetry.statspage import EventBatch, StatsPage, StatsPageError

MAX_PAGES = 4096
"""Valid pages of all users."""
UID_PAGES = 512
"""Valid pages of one user."""
UID_ALIVE = 128
"""Of these, pages of processes that run: each costs a look a second."""
MAX_NAMES = 16_384
"""Page names of one listing; more are counted and not looked at."""
KNOWN_SHARE = 0.75
"""Of the time of a scan, for pages that are known; the rest is for new ones."""
STALE_NS = 5 * 10**9
"""A heartbeat older than this, and no such process: it has ended."""
FORGOTTEN_NS = 60 * 10**9
"""A heartbeat older than this counts as ended whatever has that pid now."""
ENDED_RECHECK_NS = 10 * 10**9
REFUSED_RECHECK_NS = 10 * 10**9
"""What is no page is looked at again after this."""
TORN_RECHECK_NS = 2 * 10**9
"""The same for a page that was being written when it was looked at for the first time."""
SLICE_S, REST_S = 0.001, 0.0002
"""A scan with a budget computes for so long, then lets the daemon's other threads run."""
_PARTIAL = {
    "late": "{} pages were not read again in time",
    "listing": "not all names were listed in time",
    "names": "{} names too many",
    "subdirectories": "{} subdirectories too many",
    "unopened": "{} subdirectories could not be opened",
    "quota": "{} pages over their owner's quota",
    "too_many": "{} pages too many",
    "torn": "{} pages were being written",
    "open": "{} pages could not be opened",
}


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


def _pid_namespace() -> int:
    """Inode of this process's pid namespace; 0: not known."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF
    except OSError:
        return 0


class _Turn:
    """The time of one scan."""

    def __init__(self, clock: Callable[[], float], budget_s: float | None) -> None:
        self._clock, self._budget_s = clock, budget_s
        self._began = self._slice = clock()

    def over(self, share: float = 1.0) -> bool:
        """Whether that share of the time has passed; now and then lets other threads run."""
        if self._budget_s is None:
            return False
        now = self._clock()
        if now - self._slice >= SLICE_S:
            time.sleep(REST_S)
            now = self._slice = self._clock()
        return now - self._began >= share * self._budget_s


@dataclass(frozen=True, slots=True)
class ScanReport:
    """How much of the directory a scan saw."""

    entries: int = 0
    """Names that lie there, of whatever kind."""
    pages: int = 0
    """Valid ones."""
    partial: str = ""
    """Why there may be pages that were not read; empty: every one was."""


class StatsDirectory:
    """Scans the directory; remembers pages, event cursors and which processes have ended.

    Valid pages are read first, by turns between their owners, then names not known yet, as far as
    the time goes; the next scan goes on there. So nobody's files keep another user's pages from
    being read, and a scan that did not see everything says so.

    Attributes:
        refused: how many times a page was refused, by reason, since the start.
        report: of the last scan.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        seen: Callable[[int, int, int], bool] = process_seen,
        groups: bool = False,
        clock: Callable[[], float] = time.monotonic,
        user_of: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        """Nothing is read yet.

        Args:
            path: of the directory; it may not exist yet.
            seen: as `process_seen`.
            groups: the pages' comm groups, too.
            clock: seconds, for the time that a scan takes.
            user_of: uid → whose it is, for the quotas: one user may have thousands of them.
        """
        self.path = Path(path)
        self.refused: Counter[str] = Counter()
        self.report = ScanReport()
        self._seen = seen
        self._groups = groups
        self._clock = clock
        self._user_of = user_of
        self._began_s = 0.0
        """When the last scan began, by ``clock``."""
        self._pid_namespace = _pid_namespace()
        self._pages: dict[str, ProcessPage] = {}
        """Valid ones as last read; of one that is being written now that is the page to go by."""
        self._per_uid: Counter[int] = Counter()
        """By user, as ``user_of`` says."""
        self._alive: Counter[int] = Counter()
        """Pages of running processes by owner."""
        self._unread: dict[str, str] = {}
        """Names that may be pages and were not read, with why."""
        self._cursors: dict[str, int] = {}
        self._recheck_ns: dict[str, int] = {}
        """Names, of pages or of refused ones, that are not looked at before."""
        self._listing: Listing | None = None
        self._names: Iterator[str] = iter(())
        self._met: set[str] = set()
        """Page names of the listing so far."""

    @property
    def names(self) -> frozenset[str]:
        """Those of all valid pages."""
        return frozenset(self._pages)

    def scan(self, now_ns: int, budget_s: float | None = None) -> list[ProcessPage]:
        """All valid pages, of ended processes too while their page lies there (10 s apart).

        Args:
            now_ns: CLOCK_MONOTONIC.
            budget_s: time for this scan; None: as long as it takes.
        """
        turn = _Turn(self._clock, budget_s)
        self._began_s = self._clock()
        reasons: Counter[str] = Counter()
        known = self._by_turns()
        due = [name for name in known if self._recheck_ns.get(name, 0) <= now_ns]
        out: list[ProcessPage] = []
        for name in due:
            if turn.over(KNOWN_SHARE):
                out.append(self._aged(name, now_ns))
                reasons["late"] += 1
            elif (page := self._look(name, now_ns)) is not None:
                out.append(page)
        self._discover(now_ns, turn, out, reasons)
        for name in self._cursors.keys() - self._pages.keys():
            del self._cursors[name]
        self._report(reasons)
        return out

    def has_new_events(self, process: ProcessPage) -> bool:
        """Whether the page said, when it was read, that it has events not returned yet."""
        return process.page.event_count != self._cursors.get(process.name, 0)

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

    def _by_turns(self) -> list[str]:
        """Known names: each owner's first, then each owner's second, and so on."""
        owners: dict[int, list[str]] = {}
        for name, page in self._pages.items():
            owners.setdefault(self._user_of(page.uid), []).append(name)
        living = (page.uid for page in self._pages.values() if page.alive)
        self._alive = Counter(map(self._user_of, living))
        rows = zip_longest(*owners.values())
        return [name for row in rows for name in row if name is not None]

    def _discover(
        self, now_ns: int, turn: _Turn, out: list[ProcessPage], reasons: Counter[str]
    ) -> None:
        """Look at names not known yet, from where the last scan stopped."""
        if self._listing is None:
            self._listing = Listing(self.path)
            self._names = iter(self._listing)
            self._met = set()
        else:
            reasons["listing"] += 1
        listing = self._listing
        for number, name in enumerate(self._names):
            if name and len(self._met) < MAX_NAMES:
                self._met.add(name)
                if name not in self._pages and self._recheck_ns.get(name, 0) <= now_ns:
                    page = self._look(name, now_ns)
                    out += [page] if page is not None else []
            elif name:
                self.refused["too_many"] += 1
                reasons["names"] += 1
            if (name or number % 64 == 63) and turn.over():
                reasons["listing"] += 1
                return
        self.refused += listing.refused
        reasons["listing"] += listing.refused["open"]
        reasons["unopened"] += listing.refused["unopened"]
        reasons["subdirectories"] += listing.refused["too_many"]
        self.report = replace(self.report, entries=listing.entries)
        for name in self._pages.keys() - self._met:
            self._forget(name)
        for table in (self._recheck_ns, self._unread):
            for name in table.keys() - self._met:
                del table[name]
        self._listing = None

    def _look(self, name: str, now_ns: int) -> ProcessPage | None:
        """Read a page once; None: there is none to go by."""
        before = self._pages.get(name)
        self._unread.pop(name, None)
        try:
            page = self._read(name, now_ns)
            if before is None:
                self._admit(page)
        except StatsPageError as error:
            if error.reason != "gone":
                self.refused[error.reason] += 1
            if error.reason in _PARTIAL:
                self._unread[name] = error.reason
            if error.reason == "torn" and before is not None:
                return self._aged(name, now_ns)
            self._forget(name)
            pause = TORN_RECHECK_NS if error.reason == "torn" else REFUSED_RECHECK_NS
            self._recheck_ns[name] = now_ns + pause
            return None
        self._pages[name] = page
        if page.alive:
            self._recheck_ns.pop(name, None)
        else:
            self._recheck_ns[name] = now_ns + ENDED_RECHECK_NS
        return page

    def _admit(self, page: ProcessPage) -> None:
        """Count a new page to its owner.

        Raises:
            StatsPageError: quota, too_many.
        """
        user = self._user_of(page.uid)
        over = page.alive and self._alive[user] >= UID_ALIVE
        if over or self._per_uid[user] >= UID_PAGES:
            raise StatsPageError("quota", f"uid {page.uid}")
        if len(self._pages) >= MAX_PAGES:
            raise StatsPageError("too_many")
        self._per_uid[user] += 1
        self._alive[user] += page.alive

    def _forget(self, name: str) -> None:
        if (page := self._pages.pop(name, None)) is not None:
            user = self._user_of(page.uid)
            self._per_uid[user] -= 1
            self._alive[user] -= page.alive
            self._per_uid = +self._per_uid

    def _aged(self, name: str, now_ns: int) -> ProcessPage:
        """A page as it was last read, at this time."""
        page = self._pages[name]
        lives = alive(now_ns, page.page.heartbeat_ns, process_seen=page.seen)
        return page if lives == page.alive else replace(page, alive=lives)

    def _report(self, reasons: Counter[str]) -> None:
        entries = self.report.entries
        if self._listing is not None:
            entries = max(entries, self._listing.entries)
        reasons += Counter(self._unread.values())
        said = [text.format(count) for key, text in _PARTIAL.items() if (count := reasons[key])]
        self.report = ScanReport(entries, len(self._pages), "; ".join(said))

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
            # The scan may have been stopped for long since ``now_ns``, and the job beat meanwhile.
            passed_ns = round((self._clock() - self._began_s) * 1e9)
            page = self._checked(base, page, now_ns + passed_ns)
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
