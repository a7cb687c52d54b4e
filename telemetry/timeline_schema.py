"""The timeline's file: schema, versions and migrations, opening, quarantine, error classes.

``application_id`` tells our file from a foreign one, ``user_version`` is the schema's version. A
migration is one entry of `MIGRATIONS`, run in the transaction that also raises the version.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

APPLICATION_ID = 0x4642544C  # "FBTL"
SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 5000
_QUICK_CHECK_MAX_BYTES = 64 * 10**6

_SCHEMA = """
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  host TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  wall_ns INTEGER NOT NULL,
  mono_ns INTEGER NOT NULL,
  link TEXT NOT NULL,
  rail INTEGER,
  peer TEXT NOT NULL,
  from_state INTEGER,
  to_state INTEGER,
  reason TEXT NOT NULL,
  count INTEGER NOT NULL CHECK (count >= 0),
  data TEXT NOT NULL,
  UNIQUE (host, boot_id, seq)
);
CREATE INDEX events_by_time ON events (wall_ns);
CREATE INDEX events_by_link ON events (link, wall_ns);
CREATE INDEX events_by_kind ON events (kind, wall_ns);
CREATE TABLE sequences (
  host TEXT NOT NULL, boot_id TEXT NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (host, boot_id)
) WITHOUT ROWID;
CREATE TABLE flap_totals (
  host TEXT NOT NULL, link TEXT NOT NULL, total INTEGER NOT NULL, last_wall_ns INTEGER NOT NULL,
  PRIMARY KEY (host, link)
) WITHOUT ROWID;
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL, wall_ns INTEGER NOT NULL)
WITHOUT ROWID;
"""

_TABLES = {"events", "sequences", "flap_totals", "state"}

MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}
"""From-version → the statements that make it the next version. Empty while there is one version."""


class TimelineError(Exception):
    """The timeline could not do what was asked; nothing was half done.

    Attributes:
        retryable: the same call may succeed later (disk full, I/O error, lock held).
    """

    def __init__(self, text: str, *, retryable: bool = False) -> None:
        super().__init__(text)
        self.retryable = retryable


class TimelineUnusable(TimelineError):  # noqa: N818 - a state of the file, said as such
    """The file is corrupt, foreign or of a newer schema: it has to be set aside."""


_UNUSABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_RETRYABLE = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "input/output error",
    sqlite3.SQLITE_BUSY: "another process holds the lock",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_READONLY: "not writable",
}


def failure(path: Path, error: sqlite3.Error) -> TimelineError:
    """The `TimelineError` for an SQLite error, by its primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in _UNUSABLE:
        return TimelineUnusable(str(error))
    if primary in _RETRYABLE:
        return TimelineError(f"{path}: {_RETRYABLE[primary]} ({error})", retryable=True)
    return TimelineError(f"{path}: {error}")


def connect(path: Path, *, read_only: bool, synchronous: str) -> sqlite3.Connection:
    """Open an existing (or, writable, perhaps empty) file and check that it is ours.

    Raises:
        TimelineUnusable: corrupt, foreign or newer.
        TimelineError: cannot be opened.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        db = sqlite3.connect(
            uri,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_TIMEOUT_MS / 1000,
        )
    except sqlite3.Error as error:
        raise failure(path, error) from error
    try:
        _check_ours(db, read_only=read_only)
        if not read_only:
            db.execute(f"PRAGMA synchronous={synchronous}")
    except sqlite3.Error as error:
        db.close()
        raise failure(path, error) from error
    except TimelineError:
        db.close()
        raise
    return db


def prepare(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Open for writing: make the directory and the schema where missing, migrate, check.

    Raises:
        TimelineUnusable: the file must be set aside (`quarantine`).
        TimelineError: cannot be opened or made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TimelineError(f"{path.parent}: {error.strerror}", retryable=True) from error
    db = connect(path, read_only=False, synchronous=synchronous)
    try:
        if _pragma(db, "user_version") == 0:
            _create(db)
        else:
            _migrate(db)
        # SQLite notices most damage when it meets it; small files are read whole at once.
        if path.stat().st_size <= _QUICK_CHECK_MAX_BYTES:
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise TimelineUnusable(f"quick_check: {verdict}")
    except sqlite3.Error as error:
        db.close()
        raise failure(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def quarantine(path: Path) -> Path:
    """Rename the database aside, its WAL with it, so that `sqlite3` can still recover from it.

    Returns:
        The new path, ``<name>.unusable-<unix seconds>[-n]``.

    Raises:
        TimelineError: cannot be renamed (retryable).
    """
    stamp = f"{path.name}.unusable-{time.time_ns() // 10**9}"
    aside = path.with_name(stamp)
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{stamp}-{number}")
    try:
        # The WAL first: without its database it would be replayed into the new one.
        for suffix in ("-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        path.rename(aside)
    except OSError as error:
        raise TimelineError(
            f"{path}: cannot be set aside: {error.strerror}", retryable=True
        ) from error
    return aside


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _check_ours(db: sqlite3.Connection, *, read_only: bool) -> None:
    application, version = _pragma(db, "application_id"), _pragma(db, "user_version")
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        if read_only:
            raise TimelineUnusable("empty: no timeline yet")
        return
    if application != APPLICATION_ID:
        raise TimelineUnusable("not a timeline: another program's SQLite file")
    if version > SCHEMA_VERSION:
        raise TimelineUnusable(f"schema version {version}, this program knows {SCHEMA_VERSION}")
    if version < 1:
        raise TimelineUnusable("schema version missing")
    names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if missing := _TABLES - names:
        raise TimelineUnusable(f"tables missing: {', '.join(sorted(missing))}")


def _create(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been first.
        if _pragma(db, "user_version") == 0:
            for statement in _SCHEMA.split(";\n"):
                if statement.strip():
                    db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _migrate(db: sqlite3.Connection) -> None:
    while (version := _pragma(db, "user_version")) < SCHEMA_VERSION:
        db.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[version](db)
            db.execute(f"PRAGMA user_version={version + 1}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
