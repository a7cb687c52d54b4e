"""What a fabric-compute knows after ``kill -9``: fences, ledger, state of jobs, pending commands.

One SQLite file, ``{state_dir}/compute.db`` (WAL, ``synchronous=FULL``): when a method returns, a
power cut does not undo it. One process writes; any number reads (``fabric-compute jobs``).

A full disk stops no decision: a reserve beside the file is given back to it, and until there is
room for another reserve hosts' events wait at the broker.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute.ledger import Entry, Head, entry_after, is_hash
from compute.reserve import Reserve
from telemetry.messages.documents import ComputeJob, Fence, parse
from telemetry.messages.envelope import BadMessageError

VERSION = 1
BUSY_S = 5.0
BATCH = 1000
LOCK_S = 0.2
"""An event waits for a decision that is being stored so long at most."""
USER_OF_FENCE = "user of fence "
"""Begins the name of a state: the version before reads no fence that says its user."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS fences (id TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS ledger (
  number INTEGER PRIMARY KEY, line TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS heads (
  number INTEGER PRIMARY KEY, data TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS jobs (
  job TEXT PRIMARY KEY, data TEXT NOT NULL, wall_s REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS commands (
  id TEXT PRIMARY KEY, data TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TRIGGER IF NOT EXISTS ledger_is_not_changed BEFORE UPDATE ON ledger
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS ledger_is_not_deleted BEFORE DELETE ON ledger
  BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


@dataclass(frozen=True)
class NewRecord:
    """A record for the ledger. One with an ``id`` is stored once, however often it is given."""

    kind: str
    fields: dict[str, Any]
    id: str = ""


class StoreError(Exception):
    """The database cannot be used. The text names the file and says why."""


class Store:
    """The open database. ``path``: of the file, made where there is none."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open it. Raises ``StoreError``, also for a file of another version."""
        self.path = path
        self.reserve = Reserve(path.with_name("reserve"))
        self._lock = threading.RLock()
        try:
            self._db = _open(path, read_only=read_only)
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from None
        try:
            self._prepare(read_only=read_only)
            self._last = self._newest_entry()
            if not read_only:
                self.reserve.take()
            if not read_only and self._last is not None and not is_hash(self._last.hash):
                raise StoreError(
                    f"{path}: nothing can follow entry {self._last.number} of the ledger, for its "
                    "hash is none; fabric-compute ledger verify names the first wrong entry"
                )
        except (sqlite3.Error, ValueError) as error:
            self._db.close()
            raise StoreError(f"{path}: {error}") from None
        except StoreError:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _prepare(self, *, read_only: bool) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise StoreError(f"{self.path}: version {version}; this program knows {VERSION}")
        if read_only:
            if not version:
                raise StoreError(f"{self.path}: not a database of fabric-compute")
            return
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            for statement in _statements(_SCHEMA):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={VERSION}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Raises ``StoreError`` when it is nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._db.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}") from error

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    # -- what a decision makes durable --------------------------------------------------------

    def commit(
        self,
        fences: Sequence[Fence] = (),
        records: Sequence[NewRecord] = (),
        jobs: Sequence[ComputeJob] = (),
        commands: Sequence[tuple[str, dict[str, Any]]] = (),
        gone: Sequence[str] = (),
    ) -> list[Entry]:
        """Store everything that one decision leaves behind, in one transaction.

        Args:
            fences: issued; one that is known already is left as it is.
            records: for the ledger.
            jobs: the newest state of these jobs.
            commands: (id, data) for the ``exec`` engine; an id that was ever added is left out.
            gone: names of jobs that are no more.

        Returns:
            The entries of the ledger that the records became.

        Raises:
            StoreError: nothing of it is stored.
        """
        if not (fences or records or jobs or commands or gone):
            return []
        try:
            return self._commit(fences, records, jobs, commands, gone)
        except StoreError as error:
            if not is_full(error) or not self.reserve.give_back():
                raise
        return self._commit(fences, records, jobs, commands, gone)

    def _commit(
        self,
        fences: Sequence[Fence],
        records: Sequence[NewRecord],
        jobs: Sequence[ComputeJob],
        commands: Sequence[tuple[str, dict[str, Any]]],
        gone: Sequence[str],
    ) -> list[Entry]:
        wall = time.time()
        with self._ledger_transaction() as entries:
            for record in records:
                if record.id and not self._is_new(record.id):
                    continue
                entries.append(self._next_entry(entries, record, wall))
            self._db.executemany(
                "DELETE FROM events WHERE id = ?", [(one.id,) for one in records if one.id]
            )
            for fence in fences:
                self._db.execute(
                    "INSERT OR IGNORE INTO fences VALUES (?, ?)",
                    (fence.id, fence.model_copy(update={"uid": None}).model_dump_json()),
                )
                if fence.uid is not None:
                    self._db.execute(
                        "INSERT OR IGNORE INTO state VALUES (?, ?)",
                        (USER_OF_FENCE + fence.id, str(fence.uid)),
                    )
            for job in jobs:
                self._db.execute(
                    "INSERT INTO jobs VALUES (?, ?, ?) "
                    "ON CONFLICT (job) DO UPDATE SET data = excluded.data, "
                    "wall_s = excluded.wall_s",
                    (job.job, job.model_dump_json(), wall),
                )
            self._db.executemany("DELETE FROM jobs WHERE job = ?", [(job,) for job in gone])
            for name, data in commands:
                self._db.execute(
                    "INSERT OR IGNORE INTO commands (id, data) VALUES (?, ?)",
                    (name, json.dumps(data)),
                )
        return entries

    @contextlib.contextmanager
    def _ledger_transaction(self) -> Iterator[list[Entry]]:
        """A transaction at whose end the entries in the yielded list are in the ledger."""
        entries: list[Entry] = []
        with self._lock:  # The next entry follows the newest one, whoever writes it.
            with self._transaction():
                yield entries
                self._db.executemany(
                    "INSERT INTO ledger VALUES (?, ?, ?)",
                    [(one.number, one.line, one.hash) for one in entries],
                )
            self._last = entries[-1] if entries else self._last

    def _next_entry(self, entries: Sequence[Entry], record: NewRecord, wall_s: float) -> Entry:
        last = entries[-1] if entries else self._last
        return entry_after(last, record.kind, record.fields, wall_s)

    def _is_new(self, name: str) -> bool:
        return bool(self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (name,)).rowcount)

    def fences(self) -> list[Fence]:
        """All fences ever issued, in the order of issue. Raises ``StoreError``."""
        try:
            rows = self._rows(
                "SELECT data, value FROM fences LEFT JOIN state ON state.name = ? || fences.id "
                "ORDER BY fences.rowid",
                USER_OF_FENCE,
            )
            return [
                parse(Fence, json.loads(data) | ({} if user is None else {"uid": int(user)}))
                for data, user in rows
            ]
        except (ValueError, BadMessageError) as error:
            raise StoreError(f"{self.path}: fences: {error}") from None

    def jobs(self) -> list[tuple[ComputeJob, float]]:
        """The newest state of each job, and its time in seconds since 1970."""
        try:
            rows = self._rows("SELECT data, wall_s FROM jobs ORDER BY job")
            return [(parse(ComputeJob, json.loads(data)), wall) for data, wall in rows]
        except (ValueError, BadMessageError) as error:
            raise StoreError(f"{self.path}: jobs: {error}") from None

    # -- the ledger ---------------------------------------------------------------------------

    @property
    def last(self) -> Entry | None:
        """The newest entry of the ledger."""
        return self._last

    def _newest_entry(self) -> Entry | None:
        rows = self._rows("SELECT number, line, hash FROM ledger ORDER BY number DESC LIMIT 1")
        return Entry(*rows[0]) if rows else None

    def entries(self, first: int = 1) -> Iterator[Entry]:
        """Entries from number ``first`` on, as they lie there. Raises ``StoreError``."""
        query = "SELECT number, line, hash FROM ledger WHERE number >= ? ORDER BY number LIMIT ?"
        while rows := self._rows(query, first, BATCH):
            for row in rows:
                yield Entry(*row)
            first = rows[-1][0] + 1

    def mentions(self, text: str, most: int) -> list[Entry]:
        """The newest entries whose line has ``text``, oldest first. Raises ``StoreError``."""
        query = (
            "SELECT number, line, hash FROM ledger WHERE instr(line, ?) > 0 "
            "ORDER BY number DESC LIMIT ?"
        )
        return [Entry(*row) for row in reversed(self._rows(query, text, most))]

    def add_head(self, head: Head) -> None:
        """Keep a signed head. Raises ``StoreError``."""
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO heads VALUES (?, ?)", (head.number, head.to_json())
            )

    def heads(self) -> list[Head]:
        """All signed heads, oldest first. Raises ``StoreError``."""
        try:
            rows = self._rows("SELECT data FROM heads ORDER BY number")
            return [Head.from_json(data) for (data,) in rows]
        except ValueError as error:
            raise StoreError(f"{self.path}: heads: {error}") from None

    # -- events of hosts, until they are in the ledger ----------------------------------------

    def add_event(self, name: str, fields: dict[str, Any]) -> bool:
        """Keep an event; False: it is known already. Raises ``StoreError``: it is not kept."""
        if not self.reserve.take():
            raise StoreError(f"{self.path}: the disk is full: what is left is for decisions")
        if not self._lock.acquire(timeout=LOCK_S):
            raise StoreError(f"{self.path}: busy")
        try:
            if self._rows("SELECT 1 FROM seen WHERE id = ?", name):
                return False
            with self._transaction():
                query = "INSERT OR IGNORE INTO events VALUES (?, ?)"
                return self._db.execute(query, (name, json.dumps(fields))).rowcount > 0
        finally:
            self._lock.release()

    def events(self, most: int) -> list[NewRecord]:
        """The oldest events that are not in the ledger yet. Raises ``StoreError``."""
        rows = self._rows("SELECT id, data FROM events ORDER BY rowid LIMIT ?", most)
        # The version before kept NaN and infinities, which the ledger has no text for.
        return [
            NewRecord("host_event", json.loads(data, parse_constant=str), name)
            for name, data in rows
        ]

    # -- commands of the exec engine ----------------------------------------------------------

    def pending_commands(self) -> list[tuple[str, dict[str, Any], int]]:
        """Commands that have not ended: (id, data, attempts so far), oldest first."""
        rows = self._rows("SELECT id, data, attempts FROM commands WHERE data != '' ORDER BY rowid")
        return [(name, json.loads(data), attempts) for name, data, attempts in rows]

    def count_attempt(self, name: str) -> None:
        """The command is about to be run once more. Raises ``StoreError``."""
        with self._transaction():
            self._db.execute("UPDATE commands SET attempts = attempts + 1 WHERE id = ?", (name,))

    def note_command(self, name: str, record: NewRecord, *, over: bool) -> None:
        """A run has ended. Its record goes to the ledger. Raises ``StoreError``: it does not.

        ``over``: it is never run again, but its id stays.
        """
        with self._ledger_transaction() as entries:
            entries.append(self._next_entry(entries, record, time.time()))
            if over:
                self._db.execute("UPDATE commands SET data = '' WHERE id = ?", (name,))

    # -- small state --------------------------------------------------------------------------

    def get(self, name: str) -> str:
        """A text kept under ``name``; ``""``: none."""
        rows = self._rows("SELECT value FROM state WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def put(self, name: str, value: str) -> None:
        """Keep a text. Raises ``StoreError``."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO state VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )


def is_full(error: StoreError) -> bool:
    """The disk is, or the quota of whose it is."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode == sqlite3.SQLITE_FULL


def _open(path: Path, *, read_only: bool) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=BUSY_S, check_same_thread=False
    )


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; a trigger's body has semicolons of its own."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""
