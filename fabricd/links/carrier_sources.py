"""Who tells of carrier: the prober's records and its link table, and netlink where no prober beats.

Each reading goes to the `CarrierTracker`, which counts every loss once, whoever tells it first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fabricd.links.carrier import CarrierTracker
from fabricd.links.inventory import AdminProbe, Inventory
from fabricd.probes.feed import ProberFeed
from fabricd.probes.records import CarrierRecord, EventRecord, StallRecord
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind

STALL_ROW_NS = 10 * 10**9


class CarrierSources:
    """Reads them for one host, and sets what the administrator wants of each link."""

    def __init__(self, tracker: CarrierTracker, feed: ProberFeed, inventory: Inventory) -> None:
        self.tracker = tracker
        self.engine = tracker.engine
        self.feed = feed
        self.inventory = inventory
        self._admin = AdminProbe()
        self._began_ns = time.monotonic_ns()
        self._beating = False
        self._stall_row_ns: int | None = None

    def close(self) -> None:
        """Release descriptors."""
        self._admin.close()

    def prober(self, records: Iterable[EventRecord]) -> list[Event]:
        """New records of the prober's ring; also that it beats or no longer does."""
        return [*self._beats(), *self.told(records)]

    def told(self, records: Iterable[EventRecord]) -> list[Event]:
        """New records of the prober's ring alone."""
        return [said for record in records for said in self._record(record)]

    def _beats(self) -> list[Event]:
        """A prober that is stopped keeps its connection; only its heartbeat tells."""
        beats = self.feed.header() is not None
        if beats == self._beating:
            return []
        self._beating = beats
        events = [event(EventKind.PROBER, reason="prober beats" if beats else "prober silent")]
        # From now on netlink is what counts: what it said meanwhile was left to the prober.
        return events if beats else events + self.netlink()

    def _record(self, record: EventRecord) -> list[Event]:
        if isinstance(record, CarrierRecord):
            link = self.engine.links[record.link]
            wall = _wall(record.mono_ns)
            if record.gone:
                return self.tracker.gone(
                    link, mono_ns=record.mono_ns, wall_ns=wall, source="prober"
                )
            if not record.carrier or record.downs:
                self._ask_admin(link.index)
            mark = self.tracker.ledger.mark(link.netdev)
            if mark is None or record.returned:
                return []  # The table's row also knows the device's index.
            return self.tracker.reading(
                link,
                ifindex=mark.ifindex,
                down_count=record.down_count,
                carrier=record.carrier,
                mono_ns=record.mono_ns,
                wall_ns=wall,
                source="prober",
            )
        if isinstance(record, StallRecord):
            return self._stall(record)
        return []

    def table(self) -> list[Event]:
        """The prober's link table: what it says now, whatever records were missed."""
        events: list[Event] = []
        for row in self.feed.links() or ():
            link = self.engine.links[row.index]
            if not row.read_ns:
                continue
            if not row.present:
                events += self.tracker.gone(
                    link, mono_ns=row.read_ns, wall_ns=_wall(row.read_ns), source="prober"
                )
                continue
            mark = self.tracker.ledger.mark(link.netdev)
            if mark is not None and row.carrier_down_count != mark.down_count:
                self._ask_admin(row.index)  # it may be newer than the records read above
            events += self.tracker.reading(
                link,
                ifindex=row.ifindex,
                down_count=row.carrier_down_count,
                carrier=row.carrier,
                mono_ns=row.last_change_ns or row.read_ns,
                wall_ns=_wall(row.last_change_ns or row.read_ns),
                source="prober",
                current=row.read_ns > self._began_ns,
            )
        return events

    def netlink(self, names: set[str] | None = None) -> list[Event]:
        """What the kernel's messages have told of these devices; of all when none is named."""
        events: list[Event] = []
        now = time.monotonic_ns()
        probed = self.feed.header() is not None
        for link in self.engine.links:
            if names is not None and link.netdev not in names:
                continue
            device = self.inventory.devices.get(link.netdev)
            self.engine.report_admin(link, up=device.admin_up if device else True)
            if probed:
                continue  # Its counters are fresher than any message.
            if device is None:
                events += self.tracker.gone(link, mono_ns=now, wall_ns=_wall(now), source="netlink")
            else:
                events += self.tracker.reading(
                    link,
                    ifindex=device.ifindex,
                    down_count=device.down_count,
                    carrier=device.carrier,
                    mono_ns=now,
                    wall_ns=_wall(now),
                    source="netlink",
                    current=True,  # of a dump that this daemon asked for, or what came after it
                )
        return events

    def _ask_admin(self, index: int) -> None:
        link = self.engine.links[index]
        answer = self._admin.admin_up(link.netdev)
        if answer is not None:
            self.engine.report_admin(link, up=answer)

    def _stall(self, record: StallRecord) -> list[Event]:
        last = self._stall_row_ns
        if last is not None and record.mono_ns - last < STALL_ROW_NS:
            return []
        self._stall_row_ns = record.mono_ns
        return [
            event(
                EventKind.PROBER,
                reason="prober was not scheduled: misses of that time are inconclusive",
                data={"gap_ms": round(record.gap_ns / 1e6, 3)},
            )
        ]


def _wall(mono_ns: int) -> int:
    return time.time_ns() - time.monotonic_ns() + mono_ns
