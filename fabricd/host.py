"""One host: wires the pure engine to prober, netlink, steer page, timeline and metrics.

Order on a change: facts → engine → steer page → timeline. Nothing between a carrier record and the
page waits for a disk, a socket or another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from fabricd import probe_plan, report
from fabricd.carrier import CarrierBook
from fabricd.config import Config
from fabricd.config_source import ConfigSource
from fabricd.detect import evidence
from fabricd.detect.locate import Blame
from fabricd.detect.loss import LossTest
from fabricd.detect.silence import PathView
from fabricd.engine import Change, Engine, Outcome
from fabricd.jobs import Jobs
from fabricd.links.flaps import FlapLedger
from fabricd.links.inventory import AdminProbe, Inventory
from fabricd.operate.desk import Desk
from fabricd.prober_feed import ProberFeed
from fabricd.probes.records import CarrierRecord, EventRecord, PathRow, StallRecord
from fabricd.publisher import Publisher, event
from fabricd.recorder import Recorder
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import SteerPage
from telemetry.events import Event, EventKind
from telemetry.snapshot import HostSnapshot

STALL_ROW_NS = 10 * 10**9
SAVE_NS = 20_000_000
"""From a change to the document that says so: after kill -9 the next daemon must know what was out,
and until then the steer page and the FLAP rows tell it. A storm of flaps is one document."""


class Host:
    """The daemon's heart. Everything runs on one event loop."""

    def __init__(
        self,
        config: Config,
        *,
        modes: Modes,
        page: SteerPage,
        recorder: Recorder,
        ledger: FlapLedger,
        totals: dict[str, int],
        inventory: Inventory,
        desk: Desk,
    ) -> None:
        self.config = config
        self.desk = desk
        self.modes = modes
        self.page = page
        self.recorder = recorder
        self.start_wall_s = time.time()
        self.last_cycle_wall_s: float | None = None
        self.cycles = 0
        self.follow: Callable[[dict[str, Any]], None] = lambda _: None
        self.source: ConfigSource | None = None
        self.prober_seen: Callable[[int], None] = lambda _: None
        self.control_refused: Callable[[], int] = lambda: 0
        self.ib_note = ""
        self.last_path_rows: Sequence[PathRow] = ()
        self._snapshot = HostSnapshot(config.host.name)
        self.inventory = inventory
        self.netlink_refused: Callable[[], int] = lambda: 0
        self.jobs = self._make_jobs()
        self.engine = Engine(config, [])
        self.book = CarrierBook(self.engine, ledger, totals)
        self.feed = ProberFeed(Path(config.paths.run_dir), self.wake, self._prober_told)
        self._admin = AdminProbe()
        self._loss = LossTest(config.host.name)
        self._places = evidence.Places(config.host.name)
        self._stalled_ns = 0
        self._worse = (frozenset[int](), frozenset[int]())
        self._log = structlog.get_logger()
        self._timer: asyncio.TimerHandle | None = None
        self._publisher = Publisher(page)
        self._known_addresses = self._addresses()
        self._refused_links: dict[str, str] = {}
        self._stall_row_ns = 0
        self._changed_state = True
        self._save_at = 0
        self._prober_beat = False
        self._plan_probes()

    # -- configuration ------------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Take another valid configuration; what stays keeps its state."""
        self.config = config
        self._plan_probes()
        self.modes.retarget(Path(config.paths.stop_file))
        self.desk.heed(self)
        before = self.jobs.save()
        self.jobs = self._make_jobs()
        self.jobs.restore(before)
        self._read_inventory()
        self.step()

    def _make_jobs(self) -> Jobs:
        directory = Path(self.config.paths.run_dir) / "stats"
        return Jobs(directory, [x.netdev for x in self.config.links], time.monotonic_ns())

    def _addresses(self) -> list[str | None]:
        return probe_plan.link_addresses(self.config, self.inventory.address_of)

    def _plan_probes(self) -> None:
        """Choose paths anew for engine and prober; both must have the same."""
        addresses = self._addresses()
        specs = probe_plan.paths(self.config, addresses)
        self.engine.configure(self.config, specs)
        if probe_plan.is_known(addresses, loaded=self.inventory.loaded):
            self.feed.configure(probe_plan.probe_config(self.config, addresses, specs))
        self.last_path_rows = ()
        self._loss.reset()

    # -- input --------------------------------------------------------------------------------

    def wake(self) -> None:
        """The prober has news (or vanished, or is back)."""
        events = self._prober_beats()
        for record in self.feed.events():
            events += self._record(record)
        events += self._rows()
        self.step(events)

    def _prober_beats(self) -> list[Event]:
        """A prober that is stopped keeps its connection; only its heartbeat tells."""
        beats = self.feed.header() is not None
        if beats == self._prober_beat:
            return []
        self._prober_beat = beats
        events = [event(EventKind.PROBER, reason="prober beats" if beats else "prober silent")]
        # From now on netlink is what counts: what it said meanwhile was left to the prober.
        return events if beats else events + self._read_inventory()

    def devices_changed(self, names: set[str]) -> None:
        """Netlink said something about these devices."""
        before = self._known_addresses
        events = self._read_inventory(names)
        self._known_addresses = self._addresses()
        if self._known_addresses != before or not self.feed.configured:
            self._plan_probes()
        self.step(events)

    def _record(self, record: EventRecord) -> list[Event]:
        if isinstance(record, CarrierRecord):
            link = self.engine.links[record.link]
            wall = self._wall(record.mono_ns)
            if record.gone:
                return self.book.gone(link, mono_ns=record.mono_ns, wall_ns=wall, source="prober")
            if not record.carrier or record.downs:
                self._ask_admin(link.index)
            mark = self.book.ledger.mark(link.netdev)
            if mark is None or record.returned:
                return []  # The table row below also knows the device's index.
            return self.book.reading(
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

    def _rows(self) -> list[Event]:
        """The prober's link table: what it says now, whatever records were missed."""
        events: list[Event] = []
        for row in self.feed.links() or ():
            link = self.engine.links[row.index]
            if not row.read_ns:
                continue
            if not row.present:
                events += self.book.gone(
                    link, mono_ns=row.read_ns, wall_ns=self._wall(row.read_ns), source="prober"
                )
                continue
            events += self.book.reading(
                link,
                ifindex=row.ifindex,
                down_count=row.carrier_down_count,
                carrier=row.carrier,
                mono_ns=row.last_change_ns or row.read_ns,
                wall_ns=self._wall(row.last_change_ns or row.read_ns),
                source="prober",
            )
        return events

    def _read_inventory(self, names: set[str] | None = None) -> list[Event]:
        events: list[Event] = []
        now = time.monotonic_ns()
        probed = self.feed.header() is not None
        for link in self.engine.links:
            if names is not None and link.netdev not in names:
                continue
            device = self.inventory.devices.get(link.netdev)
            link.admin_up = device.admin_up if device else True
            if probed:
                continue  # Its counters are fresher than any message.
            if device is None:
                events += self.book.gone(
                    link, mono_ns=now, wall_ns=self._wall(now), source="netlink"
                )
            else:
                events += self.book.reading(
                    link,
                    ifindex=device.ifindex,
                    down_count=device.down_count,
                    carrier=device.carrier,
                    mono_ns=now,
                    wall_ns=self._wall(now),
                    source="netlink",
                )
        return events

    def _ask_admin(self, index: int) -> None:
        link = self.engine.links[index]
        answer = self._admin.admin_up(link.netdev)
        if answer is not None:
            link.admin_up = answer

    def _stall(self, record: StallRecord) -> list[Event]:
        if record.mono_ns - self._stall_row_ns < STALL_ROW_NS:
            return []
        self._stall_row_ns = record.mono_ns
        return [
            event(
                EventKind.PROBER,
                reason="prober was not scheduled: misses of that time are inconclusive",
                data={"gap_ms": round(record.gap_ns / 1e6, 3)},
            )
        ]

    # -- evaluation ---------------------------------------------------------------------------

    def step(self, events: Sequence[Event] = ()) -> None:
        """Evaluate, publish, then record."""
        now = time.monotonic_ns()
        header = self.feed.header()  # Before the rows: they are at least as new.
        as_of = header.heartbeat_ns if header else now
        outcome = self.engine.evaluate(self.views(), now, as_of=as_of)
        told = self._publisher.publish(self.engine, self._modes(), now)
        if events or outcome.changes or told:
            self._changed_state = True
            self._save_at = self._save_at or now + SAVE_NS
        self._emit([*events, *self._outcome_events(outcome), *told])
        if self._save_at and now >= self._save_at:
            self.save()
        self.cycles += 1
        self.last_cycle_wall_s = time.time()
        due = [at for at in (outcome.due_at, self._save_at) if at]
        self._arm(min(due, default=None), now)

    def ports_read(self, active: dict[str, bool | None]) -> None:
        """State of the verbs ports behind the links."""
        for link in self.engine.links:
            link.port_active = active.get(link.netdev)

    def feed_loss(self) -> None:
        """Each tick: is a link losing more than it should, and where is what fails?"""
        rows = self.feed.paths()
        if rows is None:
            self._loss.reset()
            return
        now = time.monotonic_ns()
        stalls = header.stall_ns if (header := self.feed.header()) else self._stalled_ns
        stalled, self._stalled_ns = max(0, stalls - self._stalled_ns), stalls
        counters = evidence.loss_counters(rows, self.engine)
        verdict = self._loss.feed(counters, now, stalled_ns=stalled)
        was = self._worse
        self._worse = (frozenset(verdict.links), frozenset(verdict.paths))
        for link in self.engine.links:
            link.worse = verdict.links.get(link.index, "")
        for path in self.engine.paths:
            path.worse = verdict.paths.get(path.index, "")
        if self._worse != was:
            self.step()
        views = evidence.path_views(rows, self.engine.paths)
        found = [*self._places.look(views, self.engine, now), *verdict.blames]
        self._emit([self._located(blame) for blame in found])

    def _located(self, blame: Blame) -> Event:
        return event(
            EventKind.LOCATED,
            reason=str(blame),
            data={
                "part": blame.kind.value,
                "element": blame.element,
                "direction": blame.way.value,
                "confidence": round(blame.confidence, 3),
                "flows": blame.flows,
            },
        )

    def give_back(self) -> None:
        """Before a graceful stop: every weight full, the plugins' own detectors rule."""
        now = time.monotonic_ns()
        self._emit(self._publisher.publish(self.engine, self._modes(), now, give_back=True))

    def mode_changed(self, why: str) -> None:
        """The mode of something is another one: publish and record it."""
        now = time.monotonic_ns()
        told = self._publisher.publish(self.engine, self._modes(), now)
        mode = self.modes.effective.name.lower()
        self._emit([event(EventKind.MODE, reason=why, data={"mode": mode}), *told])

    def mode_of(self, netdev: str) -> Mode:
        """The mode in effect on a link."""
        return self._modes().get(netdev, Mode.OBSERVE)

    def _modes(self) -> dict[str, Mode]:
        return {link.netdev: self.modes.of(link.group or "") for link in self.config.links}

    def rail_weights(self) -> dict[str, int]:
        """What the page says, by netdev."""
        return self._publisher.rail_weights()

    def save(self) -> None:
        """Queue the state documents if anything changed since."""
        self._save_at = 0
        if not self._changed_state:
            return
        now = time.monotonic_ns()
        put = self.recorder.put_state("carrier", self.book.ledger.save())
        document = {
            "boot_id": self.book.ledger.boot_id,
            "mono_ns": now,
            "wall_ns": time.time_ns(),
            "engine": self.engine.save(now),
            "jobs": self.jobs.save(),
        }
        # A queue that is full takes none: again at the next tick.
        self._changed_state = not (put and self.recorder.put_state("daemon", document))

    @property
    def settled(self) -> bool:
        """Whether everything that was recorded or marked as changed is stored."""
        return not self._changed_state and self.recorder.idle

    def mark_changed(self) -> None:
        """Store the state documents at the next `save`."""
        self._changed_state = True

    def refused_links(self) -> dict[str, str]:
        """Links that probes blame but may not take: netdev → what they say."""
        return dict(self._refused_links)

    def refused(self) -> dict[str, int]:
        """Inputs refused, by source."""
        return {
            "control_socket": self.control_refused(),
            "stats_page": self.jobs.refused,
            "ring": self.feed.refused,
            "netlink": self.netlink_refused(),
        }

    def record(self, kind: EventKind, reason: str, **data: Any) -> None:  # noqa: ANN401
        """One host event."""
        self._emit([event(kind, reason=reason, data=data)])

    def emit(self, events: Sequence[Event]) -> None:
        """Record events that were made elsewhere."""
        self._emit(events)

    def restore(self, document: dict[str, Any]) -> list[str]:
        """Take over an earlier daemon's document; returns what was not usable.

        The steer page is written before any file, so what it says to be out is out, even when the
        document is older. Of another boot only damping and what was out are taken over, aged by
        the wall clock; should that have gone back, nothing has decayed.
        """
        refused = []
        now = time.monotonic_ns()
        boot = self.book.ledger.boot_id
        if document.get("boot_id", boot) != boot:
            engine, at = document.get("engine"), document.get("wall_ns")
            if isinstance(engine, dict) and isinstance(at, int):
                refused = self.engine.restore_history(engine, now, max(0, time.time_ns() - at))
        elif document:
            self.jobs.restore(document.get("jobs"))
            engine, at = document.get("engine"), document.get("mono_ns")
            if isinstance(engine, dict) and isinstance(at, int) and at <= now:
                refused = self.engine.restore(engine, now, now - at)
            else:
                refused = ["engine"]
        for entry in self.page.taken_over:
            self.engine.adopt(entry.netdev, entry.remote, entry.state, now)
        return refused

    def refresh_snapshot(self) -> None:
        """Make the picture for the metrics endpoint's thread anew."""
        self._snapshot = report.snapshot(self)

    def current_snapshot(self) -> HostSnapshot:
        """The last picture; may be called from any thread."""
        return self._snapshot

    def close(self) -> None:
        """Release descriptors."""
        if self._timer is not None:
            self._timer.cancel()
        self._admin.close()
        if self.feed.reader is not None:
            self.feed.reader.close()

    def views(self) -> list[PathView] | None:
        """All paths as the prober sees them now; None: there is no prober."""
        rows = self.feed.paths()
        if rows is None:
            return None
        return evidence.path_views(rows, self.engine.paths)

    def _outcome_events(self, outcome: Outcome) -> list[Event]:
        limit = self.config.damping.second_tier_flaps
        events = [self._change_event(change) for change in outcome.changes]
        events += [
            event(
                EventKind.DAEMON,
                link=netdev,
                reason="flaps again and again: replace cable, optics or NIC",
                data={"flaps_per_hour_over": limit},
            )
            for netdev in outcome.operator
        ]
        for netdev, why in outcome.refused.items():
            if netdev not in self._refused_links:
                reason = f"kept in spite of probes ({why}): max_probe_share or last rail"
                events.append(event(EventKind.DAEMON, link=netdev, reason=reason))
        self._refused_links = outcome.refused
        return events

    def _change_event(self, change: Change) -> Event:
        step = change.transition
        return event(
            EventKind.PATH_STATE if change.peer else EventKind.LINK_STATE,
            link=change.netdev,
            rail=change.rail,
            peer=change.peer,
            from_state=step.from_state,
            to_state=step.to_state,
            reason=step.reason,
            data={"address": change.address} if change.address else {},
        )

    def _prober_told(self, what: str, numbers: dict[str, int]) -> None:
        self._loss.reset()
        if "pid" in numbers:
            self.prober_seen(numbers["pid"])
        self._emit([event(EventKind.PROBER, reason=f"prober {what}", data=dict(numbers))])

    def _emit(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self.recorder.put(events)
        for item in events:
            document = item.to_dict() | {"host": self.config.host.name}
            self.follow(document)
            skip = {"kind", "wall_ns", "mono_ns", "data", "host"}
            fields = {key: value for key, value in document.items() if key not in skip}
            self._log.info(item.kind.value, **fields, **item.data)

    def _arm(self, due_at: int | None, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_at is not None:
            delay = max(0.001, (due_at - now) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay, self.step)

    @staticmethod
    def _wall(mono_ns: int) -> int:
        return time.time_ns() - time.monotonic_ns() + mono_ns
