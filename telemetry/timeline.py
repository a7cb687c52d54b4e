"""The timeline: every event of one host, in SQLite, for months.

What always holds:

* ``append`` is one transaction. When it has returned, its rows survive ``kill -9`` of the writer
  (WAL with ``synchronous=NORMAL``: the commit is in the kernel's page cache; a power cut may lose
  the last commits but never breaks the file; pass ``synchronous="FULL"`` to survive that too).
* (host, boot_id, seq) is unique and seq has no gaps: the number is given inside the transaction,
  from a table that retention does not touch.
* Flap totals are counters of their own, written in the transaction of their FLAP rows, so they stay
  exact when retention has deleted the rows.
* A file that is corrupt, foreign or of a newer schema is renamed aside with its WAL, whole; a new
  one is begun and its first row says where the old one is.

A `Timeline` may be used from several threads (a lock inside); several processes may read the file
while one writes it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from telemetry.events import Event, EventKind
from telemetry.timeline_retention import DAY_NS, AgeLimit
from telemetry.timeline_rows import COLUMNS, INSERT, event_of, marks, row_of, selection
from telemetry.timeline_schema import (
    TimelineError,
    TimelineUnusable,
    connect,
    failure,
    prepare,
    quarantine,
)
from telemetry.timeline_shares import over_share

__all__ = ["DAY_NS", "PruneResult", "Retention", "Timeline", "TimelineError", "boot_id"]

_PRUNE_BATCH = 500
_IDENTITY = "identity"
_MOST_NAMES = 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept: rows younger than ``days`` and at most ``max_mb`` MB (10^6 bytes)."""

    days: float = 90.0
    max_mb: float = 512.0


@dataclass(frozen=True, slots=True)
class PruneResult:
    """Rows deleted by `Timeline.prune`, by reason."""

    by_age: int = 0
    by_size: int = 0
    kept: str = ""
    """Why rows of earlier boots stayed though the wall clock says that they are old."""


def boot_id() -> str:
    """The kernel's id of this boot (random(4), /proc/sys/kernel/random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Timeline:
    """One host's store of events and of the daemon's small state documents."""

    def __init__(
        self,
        path: Path | str,
        *,
        host: str = "",
        boot: str = "",
        retention: Retention | None = None,
        synchronous: str = "NORMAL",
        read_only: bool = False,
    ) -> None:
        """Open the store, making it (and its directory) when there is none.

        Args:
            path: of the database; ``-wal`` and ``-shm`` files lie beside it.
            host: put into events that name none.
            boot: the boot id put into events that name none; default: this kernel's.
            retention: what `prune` keeps; default 90 days, 512 MB.
            synchronous: NORMAL, FULL or EXTRA (SQLite's pragma).
            read_only: for readers in other processes; never quarantines, never creates.

        Raises:
            TimelineError: cannot be opened (``retryable`` says whether trying again may help);
                a read-only open of a corrupt or foreign file also raises this.
        """
        if synchronous not in ("NORMAL", "FULL", "EXTRA"):
            raise ValueError(f"synchronous={synchronous!r}: NORMAL, FULL or EXTRA")
        self.path = Path(path)
        self.host = host
        self.boot = boot or boot_id()
        self.retention = retention or Retention()
        self.quarantined: list[Path] = []
        """Files renamed aside by this object, oldest first."""
        self.own_hosts: tuple[str, ...] = ()
        """The names that the host of this file has had, oldest first. A host may begin as
        ``localhost`` and get its name later: its totals stay its own."""
        self._age = AgeLimit()
        self._synchronous = synchronous
        self._read_only = read_only
        self._lock = threading.RLock()
        self._db = self._open()
        self._identify()

    # -- writing ----------------------------------------------------------------------------

    def append(self, events: Sequence[Event]) -> list[Event]:
        """Store events in one transaction, all or none; returns them with host, boot_id, seq.

        An event that already has a seq keeps it; when that (host, boot_id, seq) is stored already,
        the stored row stays (so a repeated import is harmless).

        Raises:
            TimelineError: nothing was stored. ``retryable`` is true for a full disk, an I/O error
                and a lock held too long: the same call may be made again later.
        """
        if not events:
            return []
        return self._write(lambda: self._append(events))

    def set_state(self, key: str, document: object) -> None:
        """Replace one JSON document of the daemon's state, atomically and durably.

        Raises:
            TimelineError: the old document still stands.
            TypeError, ValueError: not JSON.
        """
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)

        def put() -> None:
            self._db.execute(
                "INSERT INTO state (key, value, wall_ns) VALUES (?,?,?)"
                " ON CONFLICT (key) DO UPDATE SET value=excluded.value, wall_ns=excluded.wall_ns",
                (key, text, time.time_ns()),
            )

        self._write(put)

    def prune(
        self,
        now_wall_ns: int,
        retention: Retention | None = None,
        *,
        now_mono_ns: int | None = None,
    ) -> PruneResult:
        """Apply the retention; flap totals, sequence numbers and state documents stay.

        Deletes in short transactions, oldest first, and gives freed pages back to the file system.
        What is old is said by `telemetry.timeline_retention`. The size limits all rows, and
        `telemetry.timeline_shares` says of which kind they go.

        Args:
            now_wall_ns: CLOCK_REALTIME ns.
            retention: another one from now on.
            now_mono_ns: CLOCK_MONOTONIC ns; None: now.

        Raises:
            TimelineError: as `append`; what was deleted so far stays deleted.
        """
        self.retention = retention or self.retention
        mono_ns = time.monotonic_ns() if now_mono_ns is None else now_mono_ns
        age_ns = int(self.retention.days * DAY_NS)
        old = self._age.old_rows(self._read, self.boot, now_wall_ns, mono_ns, age_ns)
        by_age = sum(self._delete_all(f"WHERE {where}", values) for where, values in old.conditions)
        by_size = 0
        maximum = int(self.retention.max_mb * 1e6)
        if self.size_bytes() > maximum:
            # Down to 90 %, so that not every append is followed by a deletion.
            by_size = self._shrink(maximum * 9 // 10)
        if by_age or by_size:
            self._vacuum()
        return PruneResult(by_age, by_size, old.kept)

    # -- reading ----------------------------------------------------------------------------

    def query(
        self,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
        link: str | None = None,
        kind: EventKind | str | Sequence[str] | None = None,
        host: str | None = None,
        limit: int | None = 1000,
    ) -> list[Event]:
        """Events in the order of storing; with ``limit`` the newest that many.

        Args:
            since_ns: CLOCK_REALTIME ns, included.
            until_ns: CLOCK_REALTIME ns, excluded.
            link: interface name; "" selects host events.
            kind: an `EventKind` or its text, or several; no kind at all matches nothing.
            host: events of that host alone.
            limit: most rows returned; None: all.

        Raises:
            TimelineError: the file cannot be read.
            ValueError: unknown kind or negative limit.
        """
        where, values = selection(since_ns, until_ns, link, kind, host, limit)
        rows = self._read(f"SELECT {COLUMNS} FROM events {where}", values)  # noqa: S608
        return [event_of(row) for row in reversed(rows)]

    def query_ids(
        self,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
        link: str | None = None,
        kind: EventKind | str | Sequence[str] | None = None,
        limit: int | None = 1000,
    ) -> array[int]:
        """As `query`, but only what `rows` finds the events by: 8 bytes for each."""
        where, values = selection(since_ns, until_ns, link, kind, None, limit)
        with self._lock:
            try:
                found = self._db.execute(f"SELECT id FROM events {where}", values)  # noqa: S608
                ids = array("q", (row[0] for row in found))
            except sqlite3.Error as error:
                raise failure(self.path, error) from error
        ids.reverse()
        return ids

    def rows(self, ids: Sequence[int]) -> list[Event]:
        """The events of some ids (at most 500), oldest first; what is deleted by now is left out.

        Raises:
            TimelineError: the file cannot be read.
        """
        found = self._read(
            f"SELECT {COLUMNS} FROM events WHERE id IN ({marks(ids)}) ORDER BY id",  # noqa: S608
            tuple(ids),
        )
        return [event_of(row) for row in found]

    def cursor(self) -> int:
        """A position after the newest row, for `read_after`."""
        return int(self._read("SELECT coalesce(max(id), 0) FROM events", ())[0][0])

    def read_after(self, cursor: int, *, limit: int = 1000) -> tuple[list[Event], int]:
        """At most ``limit`` events stored after the cursor, oldest first, and the new cursor."""
        rows = self._read(
            f"SELECT {COLUMNS}, id FROM events WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
            (cursor, limit),
        )
        return [event_of(row) for row in rows], int(rows[-1][-1]) if rows else cursor

    def follow(
        self,
        *,
        cursor: int | None = None,
        poll_s: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Yield events as they are stored, by this or another process, until ``stop()``.

        Args:
            cursor: where to begin (`cursor`); None: from now on.
            poll_s: how often the file is looked at.
            stop: asked once per poll.
        """
        at = self.cursor() if cursor is None else cursor
        while not stop():
            events, at = self.read_after(at)
            yield from events
            if not events:
                time.sleep(poll_s)

    def flap_total(self, link: str, *, host: str | None = None) -> int:
        """Carrier losses of a link ever stored, whatever retention has deleted since.

        ``host``: under that name alone; None: of this file's host, whatever it was called.
        """
        return self._totals((host,) if host else self.own_hosts).get(link, 0)

    def flap_totals(self) -> dict[str, int]:
        """The same for every link of this file's host: interface name → carrier losses."""
        return self._totals(self.own_hosts)

    def last_flap(self, link: str, boot: str) -> Event | None:
        """The newest FLAP row of a link of this file's host in one boot; None: there is none."""
        rows = self._read(
            f"SELECT {COLUMNS} FROM events WHERE link=? AND kind=? AND boot_id=?"  # noqa: S608
            f" AND host IN ({marks(self.own_hosts)}) ORDER BY id DESC LIMIT 1",
            (link, EventKind.FLAP.value, boot, *self.own_hosts),
        )
        return event_of(rows[0]) if rows else None

    def _totals(self, hosts: Sequence[str]) -> dict[str, int]:
        rows = self._read(
            f"SELECT link, sum(total) FROM flap_totals WHERE host IN ({marks(hosts)})"  # noqa: S608
            " GROUP BY link",
            tuple(hosts),
        )
        return {str(link): int(total) for link, total in rows}

    def get_state(self, key: str) -> Any:  # noqa: ANN401 - a JSON document
        """One state document, or None when there is none."""
        rows = self._read("SELECT value FROM state WHERE key=?", (key,))
        return json.loads(rows[0][0]) if rows else None

    def states(self) -> dict[str, Any]:
        """All state documents of the daemon by key."""
        rows = self._read("SELECT key, value FROM state WHERE key!=? ORDER BY key", (_IDENTITY,))
        return {str(key): json.loads(value) for key, value in rows}

    def size_bytes(self) -> int:
        """Bytes of the database in use (free pages and the WAL not counted)."""
        used = self._read(
            "SELECT (SELECT page_count FROM pragma_page_count)"
            " - (SELECT freelist_count FROM pragma_freelist_count),"
            " (SELECT page_size FROM pragma_page_size)",
            (),
        )[0]
        return int(used[0]) * int(used[1])

    def close(self) -> None:
        """Checkpoint and close; safe to call twice. Not calling it loses nothing."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Timeline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        try:
            if self._read_only:
                return connect(self.path, read_only=True, synchronous=self._synchronous)
            return prepare(self.path, synchronous=self._synchronous)
        except TimelineUnusable as error:
            if self._read_only:
                raise TimelineError(f"{self.path}: {error}") from error
            return self._begin_anew(str(error))

    def _identify(self) -> None:
        """Whose file it is: by the names stored in it, and the one of now.

        A file of before that was stored has rows of its own host only.
        """
        document = self.get_state(_IDENTITY)
        known = document.get("hosts") if isinstance(document, dict) else None
        if not isinstance(known, list):
            known = [row[0] for row in self._read("SELECT DISTINCT host FROM flap_totals", ())]
        names = [str(name) for name in known]
        if self.host and self.host not in names:
            names.append(self.host)
        self.own_hosts = tuple(names[-_MOST_NAMES:])
        if self._read_only or not self.host or known == list(self.own_hosts) != []:
            return
        with contextlib.suppress(TimelineError):  # A full disk: it is stored another time.
            self.set_state(_IDENTITY, {"hosts": list(self.own_hosts)})

    def _begin_anew(self, why: str) -> sqlite3.Connection:
        """Rename the unusable file aside, begin a new one whose first row tells."""
        aside = quarantine(self.path)
        self.quarantined.append(aside)
        self._db = prepare(self.path, synchronous=self._synchronous)
        self._identify()
        self._write(
            lambda: self._append(
                [
                    Event(
                        kind=EventKind.DAEMON,
                        wall_ns=time.time_ns(),
                        mono_ns=time.monotonic_ns(),
                        reason=f"timeline was unusable ({why}); kept as {aside.name}",
                        data={"quarantined": str(aside), "error": why},
                    )
                ]
            )
        )
        return self._db

    def _write(self, work: Callable[[], T]) -> T:
        """Run ``work`` in one transaction; a file found corrupt is replaced and it runs again."""
        with self._lock:
            try:
                return self._transaction(work)
            except TimelineUnusable as error:
                self._db.close()
                self._db = self._begin_anew(str(error))
                return self._transaction(work)

    def _transaction(self, work: Callable[[], T]) -> T:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                out = work()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise failure(self.path, error) from error
        return out

    def _read(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise failure(self.path, error) from error

    def _append(self, events: Sequence[Event]) -> list[Event]:
        out: list[Event] = []
        next_seq: dict[tuple[str, str], int] = {}
        for event in events:
            named = replace(event, host=event.host or self.host, boot_id=event.boot_id or self.boot)
            key = (named.host, named.boot_id)
            if key not in next_seq:
                row = self._db.execute(
                    "SELECT next FROM sequences WHERE host=? AND boot_id=?", key
                ).fetchone()
                next_seq[key] = int(row[0]) if row else 1
            if named.seq is None:
                named = replace(named, seq=next_seq[key])
            stored = self._db.execute(INSERT, row_of(named)).rowcount == 1
            if named.seq is not None and named.seq >= next_seq[key]:
                next_seq[key] = named.seq + 1
            if stored and named.kind is EventKind.FLAP:
                self._db.execute(
                    "INSERT INTO flap_totals (host, link, total, last_wall_ns) VALUES (?,?,?,?)"
                    " ON CONFLICT (host, link) DO UPDATE SET total = total + excluded.total,"
                    " last_wall_ns = excluded.last_wall_ns",
                    (named.host, named.link, named.count, named.wall_ns),
                )
            out.append(named)
        self._db.executemany(
            "INSERT INTO sequences (host, boot_id, next) VALUES (?,?,?)"
            " ON CONFLICT (host, boot_id) DO UPDATE SET next = excluded.next",
            [(host, boot, seq) for (host, boot), seq in next_seq.items()],
        )
        return out

    def _delete_all(self, where: str, values: tuple[object, ...]) -> int:
        """In short transactions; returns how many went."""
        deleted = 0
        while True:
            gone = self._write(lambda: self._delete(where, values))
            deleted += gone
            if gone < _PRUNE_BATCH:
                return deleted

    def _shrink(self, size: int) -> int:
        """Delete until the rows take so many bytes; returns how many went."""
        found = self._read("SELECT kind, count(*) FROM events GROUP BY kind", ())
        counts = {str(kind): int(count) for kind, count in found}
        after = dict.fromkeys(counts, 0)
        deleted = 0
        while self.size_bytes() > size and (kind := over_share(counts)):
            # In the order of storing: the index of kinds (hence the +) has that of the wall clock.
            # Each batch goes on behind the one before: what stays is passed over once.
            values = kind, after[kind]
            where = "WHERE +kind = ? AND id > ?"
            batch = f"SELECT id FROM events {where} ORDER BY id LIMIT {_PRUNE_BATCH}"  # noqa: S608
            ((last,),) = self._read(f"SELECT max(id) FROM ({batch})", values)  # noqa: S608
            gone = self._write(partial(self._delete, where, values)) if last else 0
            after[kind] = last or after[kind]
            counts[kind] = counts[kind] - gone if gone else 0
            deleted += gone
            self._vacuum()
        return deleted

    def _delete(self, where: str, values: tuple[object, ...]) -> int:
        oldest = f"SELECT id FROM events {where} ORDER BY id LIMIT {_PRUNE_BATCH}"  # noqa: S608
        return self._db.execute(f"DELETE FROM events WHERE id IN ({oldest})", values).rowcount  # noqa: S608

    def _vacuum(self) -> None:
        self._read("PRAGMA incremental_vacuum", ())
        self._read("PRAGMA wal_checkpoint(PASSIVE)", ())
