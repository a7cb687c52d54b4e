"""Follows the jobs of this host as the fabric-computes describe them, and writes timeline rows.

Messages wait until the timeline has said which rows an earlier daemon wrote, `READ_S` at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from fabricd.escalate.job_views import MOST_IDS, JobRow, JobViews
from telemetry.events import EventKind
from telemetry.messages.documents import ComputeView, HostStatus, parse
from telemetry.messages.envelope import Message
from telemetry.messages.topics import Kind
from telemetry.timeline import Timeline, TimelineError

READ_S = 10.0
MOST_HELD = 1000
KINDS = (Kind.COMPUTE_VIEW, Kind.COMPUTE_STATUS)

Record = Callable[..., None]


class JobWatch:
    """Attribute ``views``: what is known."""

    def __init__(self, database: Path, record: Record) -> None:
        """Args: ``database``: of the timeline; ``record(kind, reason, **data)`` writes a row."""
        self.views = JobViews()
        self._database, self._record = database, record
        self._held: list[Callable[[], list[JobRow]]] | None = []
        """What came before the timeline was read; None: it was."""
        self._log = structlog.get_logger()

    async def restore(self) -> None:
        """Read what an earlier daemon wrote, then take what has come meanwhile."""
        rows: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(READ_S):
                rows = await asyncio.to_thread(read_rows, self._database)
        except (TimelineError, TimeoutError) as error:
            self._log.warning("rows of jobs may come twice: the timeline is not readable",
                              error=str(error) or "no answer")  # fmt: skip
        self.views.restore(rows)
        held, self._held = self._held or [], None
        for apply in held:
            self._write(apply())

    def received(self, message: Message) -> None:
        """A view for this host, or the status of a fabric-compute. Raises ``BadMessageError``."""
        owner, now = message.topic.owner, time.monotonic_ns()
        if message.topic.kind is Kind.COMPUTE_VIEW:
            view = parse(ComputeView, message.data)
            self._apply(lambda: self.views.update(owner, view, now))
        else:
            online = parse(HostStatus, message.data).online
            self._apply(lambda: self.views.status(owner, online=online, now=now))

    def cleared(self, compute: str) -> None:
        """A fabric-compute's view of this host was cleared: no job of it is here any more."""
        self._apply(lambda: self.views.update(compute, None, time.monotonic_ns()))

    def _apply(self, change: Callable[[], list[JobRow]]) -> None:
        if self._held is None:
            self._write(change())
        elif len(self._held) < MOST_HELD:
            self._held.append(change)

    def _write(self, rows: list[JobRow]) -> None:
        for row in rows:
            self._record(row.kind, row.reason, **row.data)


def read_rows(database: Path, limit: int = MOST_IDS) -> list[dict[str, Any]]:
    """The newest rows about whole jobs, oldest first of each kind. Raises ``TimelineError``."""
    found: list[dict[str, Any]] = []
    with Timeline(database, read_only=True) as timeline:
        for kind in (EventKind.GENERATION, EventKind.MIGRATION, EventKind.SLOW_RANK):
            found += [event.to_dict() for event in timeline.query(kind=kind, limit=limit)]
    return found
