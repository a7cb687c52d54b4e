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
