"""Jobs' stats pages: totals for the metrics, PLUGIN events for the timeline; removes ended ones."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from fabricd.jobs.error_claims import ErrorClaims
from fabricd.jobs.event_budget import EventBudget, LeftOut
from fabricd.jobs.owners import Owners
from fabricd.process.blocking_call import BlockingCaller
from fabricd.process.cpu_meter import charged
from telemetry.endedpages import EndedPages
from telemetry.events import Event, EventKind, JsonScalar
from telemetry.jobtotals import JobTotals
from telemetry.livejobs import live_jobs
from telemetry.snapshot import PluginSnapshot
from telemetry.statsdir import ProcessPage, ScanReport, StatsDirectory
from telemetry.statspage import PathDownReason, StatsEvent, StatsEventKind

_MAX_EVENTS = 200
"""PLUGIN rows of one scan, in equal parts for the owners that have news."""
SCAN_BUDGET_S = 0.15
"""Time for the pages, once a second; their events may take as long again."""
LIVE_BUDGET_S = 0.5
"""The same for ``fabricctl top``."""
LIMIT_S = 30.0
"""A file system that takes longer hangs."""
_PAGES_A_TURN = 16
"""Pages that the loop adds up at once: half a millisecond or so."""

T = TypeVar("T")


class _Found(NamedTuple):
    """What one scan read."""

    pages: list[ProcessPage]
    looks: list[tuple[ProcessPage, int]]
    """Pages whose events were read, with the index of the next one."""
    events: list[tuple[ProcessPage, StatsEvent]]
    suppressed: int
    left_out: LeftOut | None
    newest_ns: int
    """Time of the newest event, CLOCK_MONOTONIC; 0: there was none."""
    now: int
    """When reading began, CLOCK_MONOTONIC."""
    wall_offset: int
    """Wall clock less CLOCK_MONOTONIC then."""


class Jobs:
    """Reads the stats directory now and then.

    Attributes:
        suppressed: plugin events not recorded because their owner had too many.
        scanned_ns: CLOCK_MONOTONIC up to which events were seen; for the next daemon's `restore`.
        removed: pages of ended processes that were removed.
        errors: what pages say of errors, and whether it is evidence.
        report: how much the last scan saw.
    """

    def __init__(
        self,
        directory: Path,
        netdevs: Iterable[str],
        now: int,
        *,
        look: Callable[[Sequence[ProcessPage]], Iterator[None]] = lambda _: iter(()),
        fault: Callable[[], bool] = lambda: False,
        owners: Owners | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            directory: of the stats pages.
            netdevs: the links whose totals are kept.
            now: CLOCK_MONOTONIC ns.
            look: takes the pages of each scan, one at a step.
            fault: whether a link or path is out of service now, or a peer is silent.
            owners: of pages; None: those of this system.
        """
        self.totals = JobTotals(netdevs)
        self.suppressed = 0
        self.removed = 0
        self._look = look
        self._fault = fault
        owners = owners or Owners.of()
        self.errors = ErrorClaims(owners, now)
        self.report = ScanReport(partial="not scanned yet")
        self.scanned_ns = now
        self._since_ns = now
        """Older events are an earlier daemon's. Newer ones come once each, by their pages' own
        cursors: pages show events late, so no page's newest says anything of another's."""
        self._budget = EventBudget()
        self._user_of = owners.user_of
        self._ended = EndedPages()
        self._directory = StatsDirectory(directory, user_of=owners.user_of)
        self._live = StatsDirectory(directory, groups=True, user_of=owners.user_of)
        self._blocking = BlockingCaller("stats", LIMIT_S)
        self._turn = asyncio.Lock()

    @property
    def refused(self) -> int:
        """Pages and counters refused."""
        return sum(self._directory.refused.values()) + self.totals.refused

    @property
    def ended(self) -> bool:
        """The last scan found a process gone: what it did must be stored before its page goes."""
        return self._ended.changed

    async def scan(self, *, settled: bool, now: int | None = None) -> list[Event]:
        """Read all pages; returns what their plugins did since the last scan.

        Args:
            settled: all that earlier scans returned is stored; only then are pages removed.
            now: CLOCK_MONOTONIC; None: as the clock says when it is this scan's turn.
        """
        found = await self._call(partial(self._read, now))
        if found is None:
            text = f"the stats directory did not answer within {LIMIT_S:g} s"
            self.report = replace(self.report, partial=text)
            return []
        self.report = self._directory.report
        # By turns: so many pages as users may leave there would keep the loop from its links.
        await _in_turns(self.totals.steps(found.pages, found.now))
        await _in_turns(self._look(found.pages))
        self.errors.update(found.pages, found.now, fault=self._fault())
        self.suppressed += found.suppressed
        self.scanned_ns = max(self.scanned_ns, found.newest_ns)
        if leftover := self._ended.update(found.looks, found.now, settled=settled):
            await self._call(partial(self._remove, leftover))
        self._ended.keep(self._directory.names)
        events = [_event(page, item, found.wall_offset) for page, item in found.events]
        if found.left_out:
            events.append(_left_out(found.left_out, found.now, found.wall_offset))
        return events

    async def live(self) -> dict[str, Any]:
        """The jobs that run now, for ``fabricctl top``: as `telemetry.livejobs.live_jobs`.

        Raises:
            TimeoutError: the directory does not answer.
        """
        found = await self._call(charged(lambda: live_jobs(self._live, budget_s=LIVE_BUDGET_S)))
        if found is None:
            raise TimeoutError
        return found

    async def _call(self, work: Callable[[], T]) -> T | None:
        """What ``work`` returns in the one thread that touches the directory; None: it hangs."""
        out: list[T] = []
        async with self._turn:
            await self._blocking.call(work, out.append)
        return out[0] if out else None

    def plugin(self) -> PluginSnapshot:
        """The figures of all pages that belong to no rail."""
        claim = self.errors.unconfirmed
        return replace(
            self.totals.plugin(), confirmed_errors=self.errors.confirmed,
            error_claim_uid=claim.uid if claim else None,
        )  # fmt: skip

    def configure(self, netdevs: Iterable[str]) -> None:
        """Other links. What was seen stays seen, also by a scan that is in a thread now."""
        self.totals.configure(netdevs)

    def restore(self, document: object) -> None:
        """Go on from an earlier daemon's totals; a document that makes no sense is ignored."""
        try:
            if isinstance(document, dict):
                self.totals.restore(document["totals"])
                self.scanned_ns = self._since_ns = int(document["scanned_ns"])
        except (ValueError, KeyError, TypeError) as error:
            structlog.get_logger().warning("job totals not restored", error=str(error))

    def save(self) -> dict[str, object]:
        """The document for `restore`."""
        return {"totals": self.totals.to_state(), "scanned_ns": self.scanned_ns}

    def _read(self, at: int | None) -> _Found:
        """In the thread: the time is taken here, for the turn may have been waited for."""
        began = time.monotonic_ns()
        now = began if at is None else at
        wall_offset = time.time_ns() - now
        directory = self._directory
        pages = directory.scan(now, SCAN_BUDGET_S)
        end = time.monotonic() + SCAN_BUDGET_S
        looks: list[tuple[ProcessPage, int]] = []
        events: list[tuple[ProcessPage, StatsEvent]] = []
        suppressed = newest = 0
        owners = {self._user_of(page.uid) for page in pages if directory.has_new_events(page)}
        room = Counter(dict.fromkeys(owners, _MAX_EVENTS // max(1, len(owners)) or 1))
        for page in pages:
            if not directory.has_new_events(page):
                looks.append((page, page.page.event_count))
            elif time.monotonic() < end:
                batch = directory.new_events(page)
                looks.append((page, batch.next_index))
                latest = now + (time.monotonic_ns() - began) + 10**9
                new = [x for x in batch.events if self._since_ns < x.time_ns <= latest]
                user = self._user_of(page.uid)
                count = self._budget.take(user, len(new), room[user], now)
                room[user] -= count
                suppressed += len(new) - count
                events += [(page, item) for item in new[:count]]
                newest = max([newest, *(min(item.time_ns, now) for item in new)])
        left_out = self._budget.left_out(now)
        return _Found(pages, looks, events, suppressed, left_out, newest, now, wall_offset)

    def _remove(self, pages: list[ProcessPage]) -> None:
        count = sum(self._directory.remove(page) for page in pages)
        self.removed += count
        if count:
            structlog.get_logger().info("stats pages of ended processes removed", count=count)


async def _in_turns(steps: Iterator[None]) -> None:
    for number, _ in enumerate(steps):
        if number % _PAGES_A_TURN == _PAGES_A_TURN - 1:
            await asyncio.sleep(0)


def _event(process: ProcessPage, item: StatsEvent, wall_offset: int) -> Event:
    rails = process.page.rails
    local = item.local_rail
    data: dict[str, JsonScalar] = {
        "job": process.page.job,
        "uid": process.uid,
        "pid": process.page.pid,
        "detail": item.detail,
    }
    if item.kind is StatsEventKind.PATH_DOWN and item.detail in set(PathDownReason):
        data["why"] = PathDownReason(item.detail).name.lower()
    return Event(
        EventKind.PLUGIN,
        wall_offset + item.time_ns,
        item.time_ns,
        link=rails[local].netdev if local is not None and local < len(rails) else "",
        reason=item.kind.name.lower(),
        data=data,
    )


def _left_out(found: LeftOut, now: int, wall_offset: int) -> Event:
    return Event(
        EventKind.PLUGIN,
        wall_offset + now,
        now,
        reason=f"left out: {found.events} events of stats pages, most of uid {found.uid}",
        data={"events": found.events, "uid": found.uid, "of_uid": found.of_uid},
    )
