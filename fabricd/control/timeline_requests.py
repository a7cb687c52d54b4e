"""The timeline as it is asked for over the control socket: what may be asked, and its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fabricd.config.netdev_names import kernel_name
from fabricd.control.server import Document, RequestError, encode_value
from fabricd.operate.overrides import HOST
from telemetry.events import EventKind
from telemetry.timeline import Timeline, TimelineError

ROWS_AT_ONCE = 100


def timeline_query(request: Document) -> dict[str, Any]:
    """The arguments of `Timeline.query` out of a request.

    Raises:
        RequestError: one makes no sense.
    """
    query: dict[str, Any] = {"limit": 1000}
    wanted: dict[str, type] = {
        "since_ns": int, "until_ns": int, "link": str, "kind": str, "limit": int
    }  # fmt: skip
    for key, kind in wanted.items():
        value: Any = request.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RequestError(f"{key} must be {'text' if kind is str else 'an integer'}")
        query[key] = value
    if query.get("link", HOST) != HOST:
        query["link"] = kernel_name(query["link"])
    if not 0 <= query["limit"] <= 100_000:
        raise RequestError("limit must be from 0 to 100000")
    for key in ("since_ns", "until_ns"):
        if key in query and not -(2**63) <= query[key] < 2**63:
            raise RequestError(f"{key} is out of range")
    if (several := request.get("kinds")) is not None:
        if "kind" in query or not isinstance(several, list):
            raise RequestError("kinds must be a list, without kind")
        query["kind"] = several
    given = query.get("kind", [])
    known = [kind.value for kind in EventKind]
    if any(one not in known for one in ([given] if isinstance(given, str) else given)):
        raise RequestError(f"kind must be one of {', '.join(known)}")
    return query


def query_rows(database: Path, query: dict[str, Any]) -> list[dict[str, object]]:
    """The rows of one small query. Raises `RequestError`: the file cannot be read."""
    try:
        with Timeline(database, read_only=True) as timeline:
            return [event.to_dict() for event in timeline.query(**query)]
    except TimelineError as error:
        raise RequestError(f"timeline: {error}") from error


class TimelineReader:
    """The rows of one query, a few at a time. Used by one thread at a time.

    No read transaction lasts over two parts: a slow client does not make the file's WAL grow.
    """

    def __init__(self, database: Path, query: dict[str, Any]) -> None:
        """Raises `RequestError`: the file cannot be read."""
        try:
            self._timeline = Timeline(database, read_only=True)
            try:
                self._ids = self._timeline.query_ids(**query)
            except BaseException:
                self._timeline.close()
                raise
        except TimelineError as error:
            raise RequestError(f"timeline: {error}") from error
        self._at = 0

    def next_part(self) -> bytes:
        """The next rows as JSON objects with commas between them; empty: these were all.

        Raises:
            RequestError: as the constructor does.
        """
        rows: list[dict[str, object]] = []
        while not rows and self._at < len(self._ids):  # Some may be deleted by now.
            ids = self._ids[self._at : self._at + ROWS_AT_ONCE]
            self._at += len(ids)
            try:
                rows = [event.to_dict() for event in self._timeline.rows(ids)]
            except TimelineError as error:
                raise RequestError(f"timeline: {error}") from error
        return encode_value(rows)[1:-1]

    def close(self) -> None:
        """Close the file."""
        self._timeline.close()
