"""Rows of the timeline's file: columns, and events to and from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from telemetry.events import Event, EventKind, LinkState

COLUMNS = (
    "host, boot_id, seq, kind, wall_ns, mono_ns, link, rail, peer, from_state, to_state, reason,"
    " count, data"
)
INSERT = (
    f"INSERT INTO events ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"  # noqa: S608
    " ON CONFLICT (host, boot_id, seq) DO NOTHING"
)


def marks(values: Sequence[object]) -> str:
    """SQL's placeholders for so many values."""
    return ",".join("?" * len(values)) or "NULL"


def row_of(event: Event) -> tuple[object, ...]:
    """An event as values of `COLUMNS`."""
    return (
        event.host,
        event.boot_id,
        event.seq,
        event.kind.value,
        event.wall_ns,
        event.mono_ns,
        event.link,
        event.rail,
        event.peer,
        None if event.from_state is None else int(event.from_state),
        None if event.to_state is None else int(event.to_state),
        event.reason,
        event.count,
        json.dumps(event.data, separators=(",", ":")) if event.data else "",
    )


def event_of(row: tuple[Any, ...]) -> Event:
    """The inverse of `row_of`."""
    return Event(
        host=row[0],
        boot_id=row[1],
        seq=row[2],
        kind=EventKind(row[3]),
        wall_ns=row[4],
        mono_ns=row[5],
        link=row[6],
        rail=row[7],
        peer=row[8],
        from_state=None if row[9] is None else LinkState(row[9]),
        to_state=None if row[10] is None else LinkState(row[10]),
        reason=row[11],
        count=row[12],
        data=json.loads(row[13]) if row[13] else {},
    )


def selection(
    since_ns: int | None,
    until_ns: int | None,
    link: str | None,
    kind: EventKind | str | Sequence[str] | None,
    host: str | None,
    limit: int | None,
) -> tuple[str, tuple[object, ...]]:
    """What follows FROM in the SQL of `Timeline.query`, newest first, and its values.

    Raises:
        ValueError: unknown kind or negative limit.
    """
    if limit is not None and limit < 0:
        raise ValueError("limit must not be negative")
    wanted: tuple[tuple[str, object], ...] = (
        ("wall_ns >= ?", since_ns),
        ("wall_ns < ?", until_ns),
        ("link = ?", link),
        ("host = ?", host),
    )
    given = [(clause, value) for clause, value in wanted if value is not None]
    kinds = [EventKind(one).value for one in ((kind,) if isinstance(kind, str) else kind or ())]
    clauses = [clause for clause, _ in given]
    if kind is not None:
        clauses.append(f"kind IN ({marks(kinds)})")
    where = " AND ".join(clauses) or "1"
    values = *(value for _, value in given), *kinds, -1 if limit is None else limit
    return f"WHERE {where} ORDER BY id DESC LIMIT ?", values
