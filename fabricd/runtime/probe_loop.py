"""Takes news of the prober and of the kernel as they come, the most urgent first.

Order on a change: facts → engine → steer page → timeline. Nothing between a carrier record and the
page waits for a disk, a socket or another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from fabricd.detect.loss import LossTest
from fabricd.engine import Engine
from fabricd.links.carrier_sources import CarrierSources
from fabricd.probes.records import EventRecord, RdmaPortRecord
from fabricd.runtime import fast_path
from fabricd.runtime.evaluator import Evaluator
from fabricd.runtime.event_stream import EventStream
from fabricd.runtime.probe_planner import ProbePlanner
from fabricd.runtime.prober import Prober
from fabricd.runtime.state_saver import StateSaver
from fabricd.timeline.rows import event
from telemetry.events import EventKind

LATE_S = 0.01
"""Records of links that are out, or are heard again, are collected for this long."""


class ProbeLoop:
    """Runs the prober's feed, and the timer of records that may wait."""

    def __init__(
        self,
        engine: Engine,
        prober: Prober,
        *,
        carriers: CarrierSources,
        losses: LossTest,
        planner: ProbePlanner,
        evaluator: Evaluator,
        events: EventStream,
        saver: StateSaver,
        prober_seen: Callable[[int], None],
    ) -> None:
        """Args: ``prober_seen``: called with the process id of each prober that appears."""
        self._engine, self._feed, self._counts = engine, prober.feed, prober.counts
        self._carriers = carriers
        self._losses, self._planner, self._evaluator = losses, planner, evaluator
        self._events, self._saver = events, saver
        self._prober_seen = prober_seen
        self._late: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve the prober until cancelled."""
        await self._feed.run(self.woken, self.prober_changed)

    def wake(self) -> None:
        """Take all records of the prober now."""
        self._look(self._feed.events())

    def woken(self) -> None:
        """The prober has news (or vanished, or is back)."""
        records, rdma = self._feed.events(), self._feed.take_rdma_events()
        self._ports_changed(rdma)
        urgent = any(fast_path.may_take_out(record, self._engine) for record in records)
        if urgent or any(map(self._engine.rdma.matters, rdma)) or not (records or rdma):
            self._look(records)
            return
        # Links that are out flap or miss all their probes on and on: counted now, looked at
        # together, so that a storm of theirs leaves time for the others.
        if told := self._carriers.told(records):
            self._events.hold(told)
            self._saver.changed(time.monotonic_ns())
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(LATE_S, self.wake)

    def prober_changed(self, what: str, numbers: dict[str, int]) -> None:
        """Another prober serves, or none: ``numbers`` are those of the new one."""
        self._losses.rebase()
        # What an older prober counted before this moment is no count of ours.
        self._counts.prober.update(self._feed.header())
        if "pid" in numbers:
            self._prober_seen(numbers["pid"])
        self._events.emit([event(EventKind.PROBER, reason=f"prober {what}", data=dict(numbers))])

    def devices_changed(self, names: set[str]) -> None:
        """Netlink said something about these devices."""
        before = self._admin()
        events = self._carriers.netlink(names)
        if not self._planner.follow_addresses() and not events and self._admin() == before:
            return  # The kernel tells of each flap, seconds later too; the prober was sooner.
        self._evaluator.step(events)

    def close(self) -> None:
        """Stop the timer."""
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _look(self, records: Sequence[EventRecord]) -> None:
        self.close()
        told = self._carriers.prober(records)
        if not fast_path.may_evaluate_first(records, self._engine):
            self._evaluator.step([*told, *self._carriers.table()])
            return
        self._evaluator.step(told)
        # Of what records were missed: the page has what they say by now.
        before = self._carrier_states()
        if (events := self._carriers.table()) or self._carrier_states() != before:
            self._evaluator.step(events)

    def _carrier_states(self) -> list[tuple[bool | None, bool]]:
        return [(link.carrier, link.admin_up) for link in self._engine.links]

    def _admin(self) -> list[bool]:
        return [link.admin_up for link in self._engine.links]

    def _ports_changed(self, records: Iterable[EventRecord]) -> None:
        """What the prober's events say of verbs ports; `PortWatch` says it 1 s later."""
        for record in records:
            if not isinstance(record, RdmaPortRecord):
                continue
            link = self._engine.rdma.beside(record.link)
            if link is not None and len(self._planner.verbs_ports.get(link.netdev, ())) == 1:
                self._engine.report_port(link, record.active)
