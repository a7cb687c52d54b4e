"""The outbox's file: messages that the broker has not acknowledged yet, in SQLite.

When ``add`` has returned, its messages survive ``kill -9`` (WAL, ``synchronous=NORMAL``). The file
is bounded: over its limits the oldest of the least important messages is dropped and counted, also
across restarts. A file that is corrupt or another program's is renamed aside.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from telemetry.timeline_schema import TimelineError, TimelineUnusable, failure, quarantine

APPLICATION_ID = 0x46424F58  # "FBOX"
VERSION = 1
_SCHEMA = (
    "CREATE TABLE messages (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
    " importance INTEGER NOT NULL, payload BLOB NOT NULL)",
    "CREATE INDEX messages_by_importance ON messages (importance, n)",
    "CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO totals VALUES ('dropped', 0)",
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={VERSION}",
)
T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """A message to be sent. The more ``importance``, the later it is dropped."""

    id: str
    importance: int
    payload: bytes


@dataclass(frozen=True)
class Depth:
    """What waits: messages, their bytes, and how many were dropped since the file was made."""

    messages: int = 0
    bytes: int = 0
    dropped: int = 0


class OutboxStore:
    """Of one thread at a time."""

    def __init__(
        self, path: Path, *, most_messages: int = 100_000, most_bytes: int = 64 << 20
    ) -> None:
        """Prepare; the file is opened with the first call."""
        self.depth = Depth()
        self.set_aside: list[Path] = []
        """Unusable files, renamed."""
        self._path, self._most = path, (most_messages, most_bytes)
        self._db: sqlite3.Connection | None = None

    def add(self, messages: Sequence[Waiting]) -> None:
        """Store messages, and drop what is over the limits. Raises `TimelineError`: none is."""

        def work(db: sqlite3.Connection) -> Depth:
            depth = self.depth
            count, size, dropped = depth.messages, depth.bytes, depth.dropped
            for one in messages:
                done = db.execute(
                    "INSERT OR IGNORE INTO messages (id, importance, payload) VALUES (?,?,?)",
                    (one.id, one.importance, one.payload),
                )
                count, size = count + done.rowcount, size + done.rowcount * len(one.payload)
            while count > self._most[0] or size > self._most[1]:
                n, length = db.execute(
                    "SELECT n, length(payload) FROM messages ORDER BY importance, n LIMIT 1"
                ).fetchone()
                db.execute("DELETE FROM messages WHERE n=?", (n,))
                count, size, dropped = count - 1, size - length, dropped + 1
            if dropped != depth.dropped:
                db.execute("UPDATE totals SET value=? WHERE name='dropped'", (dropped,))
            return Depth(count, size, dropped)

        self.depth = self._transaction(work)

    def oldest(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """(number, payload) of the oldest messages with a number over ``after``."""
        return self._transaction(
            lambda db: db.execute(
                "SELECT n, payload FROM messages WHERE n>? ORDER BY n LIMIT ?", (after, limit)
            ).fetchall()
        )

    def remove(self, numbers: Sequence[int], *, dropped: bool = False) -> None:
        """The broker has these messages; ``dropped``: it takes none of them, they count as lost."""

        def work(db: sqlite3.Connection) -> Depth:
            count, size, lost = self.depth.messages, self.depth.bytes, self.depth.dropped
            for n in numbers:
                row = db.execute("SELECT length(payload) FROM messages WHERE n=?", (n,)).fetchone()
                if row is not None:  # It may have been dropped while it was under way.
                    db.execute("DELETE FROM messages WHERE n=?", (n,))
                    count, size, lost = count - 1, size - row[0], lost + dropped
            if lost != self.depth.dropped:
                db.execute("UPDATE totals SET value=? WHERE name='dropped'", (lost,))
            return Depth(count, size, lost)

        self.depth = self._transaction(work)

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._once(work)
        except TimelineUnusable:
            self.close()
            self.set_aside.append(quarantine(self._path))
            return self._once(work)

    def _once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                out = work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise failure(self._path, error) from error
        return out

    def _open(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TimelineError(f"{self._path.parent}: {error.strerror}", retryable=True) from error
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
            messages, size = db.execute(
                "SELECT count(*), coalesce(sum(length(payload)), 0) FROM messages"
            ).fetchone()
            (dropped,) = db.execute("SELECT value FROM totals WHERE name='dropped'").fetchone()
        except (sqlite3.Error, TypeError) as error:
            with contextlib.suppress(sqlite3.Error):
                db.close()
            if isinstance(error, TypeError):
                raise TimelineUnusable("a total is missing") from error
            raise
        self.depth, self._db = Depth(messages, size, dropped), db
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        application, version = (
            db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application, version, tables) == (0, 0, 0):
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute("COMMIT")
        elif (application, version) != (APPLICATION_ID, VERSION):
            db.close()
            raise TimelineUnusable(f"no outbox of version {VERSION}")
        db.execute("PRAGMA synchronous=NORMAL")
