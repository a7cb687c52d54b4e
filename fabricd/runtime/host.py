"""One host: wires the pure engine to prober, netlink, steer page, timeline and metrics.

Order on a change: facts → engine → steer page → timeline. Nothing between a carrier record and the
page waits for a disk, a socket or another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from fabricd.clock.counts import ClockCounts
from fabricd.config.loader import Config
from fabricd.config.source import ConfigSource
from fabricd.config.tables import PeerTable
from fabricd.delay.fabric import FabricTimes
from fabricd.delay.watch import DelayWatch
from fabricd.detect import evidence
from fabricd.detect.localization import Localization
from fabricd.detect.loss import LossTest
from fabricd.detect.silence import PathView
from fabricd.engine import Engine
from fabricd.jobs.stats_pages import Jobs
from fabricd.links.carrier import CarrierTracker
from fabricd.links.carrier_sources import CarrierSources
from fabricd.links.flaps import FlapLedger
from fabricd.links.ibports import Port
from fabricd.links.inventory import Inventory
from fabricd.nics.monitor import NicMonitor
from fabricd.nics.reader import Reading
from fabricd.operate.manager import OverrideManager
from fabricd.predict.forecast import Forecast
from fabricd.probes import plan
from fabricd.probes.counts import ProbeCounts
from fabricd.probes.feed import ProberFeed
from fabricd.probes.monitor import ProbeMonitor
from fabricd.probes.path_table import PathTables
from fabricd.probes.records import EventRecord, PathRow, RdmaPortRecord
from fabricd.runtime import fast_path
from fabricd.state.evaluation import Evaluation
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import SteerPage
from fabricd.steer.publisher import Publisher
from fabricd.timeline.levels import level as event_level
from fabricd.timeline.recorder import Recorder
from fabricd.timeline.restart_state import state_document
from fabricd.timeline.rows import evaluation_events, event
from telemetry.events import Event, EventKind, LinkState
from telemetry.metrics_server import EndpointState

if TYPE_CHECKING:
    from fabricd.escalate.service import Escalation

SAVE_NS = 20_000_000
"""From a change to the document that says so: after kill -9 the next daemon must know what was out,
and until then the steer page and the FLAP rows tell it. A storm of flaps is one document."""
LATE_S = 0.01
"""News of what is out anyway, or is heard again, wait so long for each other."""
KEEP_NS = 600 * 10**9
"""What is learnt all the time is stored so often at least."""


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
        overrides: OverrideManager,
        discovered: tuple[PeerTable, ...] = (),
    ) -> None:
        self._file, self._discovered = config, discovered
        config = self.config = plan.with_peers(config, discovered)
        self.overrides = overrides
        self.modes = modes
        self.page = page
        self.recorder = recorder
        self.start_wall_s = time.time()
        self.last_cycle_wall_s: float | None = None
        self.last_cycle_ns = 0
        """End of the last full cycle, CLOCK_MONOTONIC; 0: there was none."""
        self.cycles = 0
        self.follow: Callable[[dict[str, Any]], None] = lambda _: None
        self.escalation: Escalation | None = None
        """Set while a broker is configured."""
        self.silence_changed: Callable[[], None] = lambda: None
        """Called when another set of hosts is silent, once the page says what follows from it."""
        self.source: ConfigSource | None = None
        self.prober_seen: Callable[[int], None] = lambda _: None
        self.control_refused: Callable[[], int] = lambda: 0
        self.endpoint = EndpointState()
        self.endpoint_refused: Callable[[], int] = lambda: 0
        self.ib_note = ""
        self.receive_note: Callable[[], str] = lambda: "not read"
        self.payload_note: Callable[[], str] = lambda: "not read"
        self.inventory = inventory
        self.netlink_refused: Callable[[], int] = lambda: 0
        self.delay = DelayWatch(FabricTimes(Path(config.paths.run_dir)))
        self.jobs = self._make_jobs()
        self.engine = Engine(config, [])
        self.carrier_tracker = CarrierTracker(self.engine, ledger, totals)
        self.nics = NicMonitor((x.netdev for x in config.links), config.link_speeds)
        self.feed = ProberFeed(Path(config.paths.run_dir), self._rung, self._prober_told)
        self.tables = PathTables(self.engine)
        self.verbs_ports: Mapping[str, Sequence[Port]] = {}
        """By netdev: the verbs ports behind it."""
        self.carrier_sources = CarrierSources(self.carrier_tracker, self.feed, inventory)
        self.losses = LossTest(config.host.name)
        self.counts = ProbeCounts(time.monotonic_ns())
        self.clock_counts = ClockCounts()
        self.localization = Localization(config.host.name)
        self.outages: Counter[str] = Counter()
        """Times that each link went out of service."""
        self.probing = ProbeMonitor()
        self._stalled_ns = 0
        self._keep_at = time.monotonic_ns() + KEEP_NS
        self._worse = (frozenset[int](), frozenset[int]())
        self._log = structlog.get_logger()
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._held: list[Event] = []
        """Told of links that are out, and not recorded yet."""
        self._publisher = Publisher(page)
        self._known_addresses = self._addresses()
        self._refused_links: dict[str, str] = {}
        self._changed_state = True
        self._save_at = 0
        self._plan_probes()

    # -- configuration ------------------------------------------------------------------------

    def reconfigure(self, config: Config) -> None:
        """Take another valid configuration; what stays keeps its state."""
        self._file = config
        config = self.config = plan.with_peers(config, self._discovered)
        self._plan_probes()
        self.nics.configure((x.netdev for x in config.links), config.link_speeds)
        self.modes.retarget(Path(config.paths.stop_file))
        self.overrides.apply(self)
        self.jobs.configure(x.netdev for x in config.links)
        self.carrier_sources.netlink()
        self.step()

    @property
    def discovers(self) -> bool:
        """Hosts to probe are found over the broker: the configuration names none."""
        return self._file.broker is not None and not self._file.peers

    def discover(self, peers: tuple[PeerTable, ...]) -> None:
        """Probe the hosts that were found over the broker, where the configuration names none."""
        self._discovered = peers
        self.reconfigure(self._file)

    def _make_jobs(self) -> Jobs:
        directory = Path(self.config.paths.run_dir) / "stats"
        jobs = Jobs(directory, [x.netdev for x in self.config.links], time.monotonic_ns())
        jobs.looked = self.delay.jobs_seen
        return jobs

    def _addresses(self) -> list[str | None]:
        return plan.link_addresses(self.config, self.inventory.address_of)

    def _plan_probes(self) -> None:
        """Choose paths anew for engine and prober; both must have the same."""
        addresses = self._addresses()
        specs = plan.paths(self.config, addresses)
        rdma = plan.rdma_ports(self.config, addresses, specs, self.verbs_ports)
        self.engine.configure(self.config, specs, [port.link for port in rdma])
        self.delay.configure(self.engine)
        if plan.is_known(addresses, loaded=self.inventory.loaded):
            self.feed.configure(plan.probe_config(self.config, addresses, specs, rdma))
        self.tables.forget()
        self.counts.renumbered()
        self.probing.configure()
        names = [link.netdev for link in self.config.links]
        keys = [
            (p.netdev, p.spec.peer, p.spec.peer_rail, p.spec.address) for p in self.engine.paths
        ]
        self.losses.configure(names, keys)
        self.localization.configure(self.config)

    # -- input --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Take all that the prober says now."""
        self._look(self.feed.events())

    def _look(self, records: Sequence[EventRecord]) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        told = self.carrier_sources.prober(records)
        if not fast_path.may_evaluate_first(records, self.engine):
            self.step([*told, *self.carrier_sources.table()])
            return
        self.step(told)
        # Of what records were missed: the page has what they say by now.
        before = self._carriers()
        if (events := self.carrier_sources.table()) or self._carriers() != before:
            self.step(events)

    def _carriers(self) -> list[tuple[bool | None, bool]]:
        return [(link.carrier, link.admin_up) for link in self.engine.links]

    def _rung(self) -> None:
        """The prober has news (or vanished, or is back)."""
        records, rdma = self.feed.events(), self.feed.take_rdma_events()
        self._ports_changed(rdma)
        urgent = any(fast_path.may_take_out(record, self.engine) for record in records)
        if urgent or any(map(self.engine.rdma.matters, rdma)) or not (records or rdma):
            self._look(records)
            return
        # Links that are out flap or miss all their probes on and on: counted now, looked at
        # together, so that a storm of theirs leaves time for the others.
        if told := self.carrier_sources.told(records):
            self._held += told
            self._changed_state = True
            self._save_at = self._save_at or time.monotonic_ns() + SAVE_NS
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(LATE_S, self.wake)

    def devices_changed(self, names: set[str]) -> None:
        """Netlink said something about these devices."""
        before = self._known_addresses, [link.admin_up for link in self.engine.links]
        events = self.carrier_sources.netlink(names)
        self._known_addresses = self._addresses()
        if self._known_addresses != before[0] or not self.feed.configured:
            self._plan_probes()
        elif not events and [link.admin_up for link in self.engine.links] == before[1]:
            return  # The kernel tells of each flap, seconds later too; the prober was sooner.
        self.step(events)

    # -- evaluation ---------------------------------------------------------------------------

    def step(self, events: Sequence[Event] = ()) -> None:
        """Evaluate, publish, then record."""
        now = time.monotonic_ns()
        header = self.feed.header()  # Before the rows: they are at least as new.
        as_of = header.heartbeat_ns if header else now
        silent = self.engine.silent_hosts
        table = self.tables.read(self.feed)
        evaluation = self.engine.evaluate(
            table and table.views, now, rdma=table.rdma_views if table else (), as_of=as_of
        )
        self.counts.evaluated(evaluation, self.engine)
        for change in evaluation.changes:
            if not change.peer and change.transition.to_state is LinkState.DOWN:
                self.outages[change.netdev] += 1
        told = self._publisher.publish(self.engine, self._modes(), now)
        if evaluation.silent_hosts != silent:
            self.silence_changed()
        if events or self._held or evaluation.changes or told:
            self._changed_state = True
            self._save_at = self._save_at or now + SAVE_NS
        self._emit([*events, *self._engine_events(evaluation), *told])
        if self._save_at and now >= self._save_at:
            self.save()
        self.cycles += 1
        self.last_cycle_wall_s, self.last_cycle_ns = time.time(), time.monotonic_ns()
        due = [at for at in (evaluation.due_at, self._save_at) if at]
        self._arm(min(due, default=None), now)

    def ports_found(self, ports: Mapping[str, Sequence[Port]]) -> None:
        """Which verbs ports stand behind the links, by netdev: RDMA is probed there."""
        if ports != self.verbs_ports:
            self.verbs_ports = ports
            self._plan_probes()

    def _ports_changed(self, records: Iterable[EventRecord]) -> None:
        """What the prober's asynchronous events say of ports; `ports_read` says it 1 s later."""
        for record in records:
            if not isinstance(record, RdmaPortRecord):
                continue
            link = self.engine.rdma.beside(record.link)
            if link is not None and len(self.verbs_ports.get(link.netdev, ())) == 1:
                self.engine.report_port(link, record.active)

    def ports_read(self, active: dict[str, bool | None]) -> None:
        """State of the verbs ports behind the links."""
        for link in self.engine.links:
            self.engine.report_port(link, active.get(link.netdev))

    @property
    def suspects_loss(self) -> bool:
        """Whether a link loses, and it is open how much and where: worth a look between ticks."""
        return self.losses.suspects

    def nics_read(self, readings: Sequence[Reading]) -> None:
        """What a thread read of the NICs."""
        now = time.monotonic_ns()
        self._found(*self.nics.take(readings, self.engine, self.carrier_tracker.totals, now))

    def nics_checked(self, hanging: Mapping[str, float]) -> None:
        """Each tick: which NICs do not answer."""
        self._found(*self.nics.check(self.engine, hanging, time.monotonic_ns()))

    def foretold(self, forecasts: Mapping[str, Forecast]) -> None:
        """A window of the failure forecast."""
        self._found(*self.nics.foretold(self.engine, forecasts, time.monotonic_ns()))

    def _found(self, events: Sequence[Event], changed: bool) -> None:
        if changed:
            self.step(events)
        else:
            self._emit(events)

    def feed_loss(self, *, between: bool = False) -> None:
        """Each tick: is a link losing more than it should, and where is what fails?

        Args:
            between: the tick is yet to come; only losses that name somebody are placed.
        """
        rows = self.path_rows(recent=True)
        now = time.monotonic_ns()
        self._emit(self.delay.tick(self.feed, rows or (), self.engine, now))
        if rows is None:
            self.losses.rebase()
            return
        stalls = header.stall_ns if (header := self.feed.header()) else self._stalled_ns
        stalled, self._stalled_ns = max(0, stalls - self._stalled_ns), stalls
        over_rdma = self.tables.last.rdma_rows if self.tables.last else []
        self.counts.look([*rows, *over_rdma], header, self.engine, now, stalled_ns=stalled)
        counters = evidence.loss_counters(rows, self.engine, self.delay.queued_ns())
        self.losses.topology = self.localization.places.topology
        verdict = self.losses.feed(counters, now, stalled_ns=stalled)
        was = self._worse
        self._worse = (frozenset(verdict.links), frozenset(verdict.paths))
        self.engine.report_loss(verdict.links, verdict.paths)
        if self._worse != was:
            self.step()
        if now >= self._keep_at:
            self._changed_state, self._keep_at = True, now + KEEP_NS
        self.localization.lost(verdict, self.engine)
        if verdict.blames or not between:
            views = self.tables.last.views if self.tables.last else ()
            self._emit(self.localization.look(views, self.engine, now, more=verdict.blames))

    def watch_probing(self) -> None:
        """Each tick: do probes watch all links?"""
        now = time.monotonic_ns()
        rows = self.path_rows(recent=True)
        told = self.probing.tick(self.feed, rows, self.engine, self.config, self._addresses(), now)
        self._emit(told)
        self.probing.ask(self.feed, now, self._apply_mtu)
        self._apply_mtu()

    def _apply_mtu(self) -> None:
        if self.probing.judge_mtu(self.engine, time.monotonic_ns()):
            self.step()

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

    def rdma_weights(self) -> dict[str, int]:
        """What the page says of RDMA, where that is not the weight of IP; by netdev."""
        return self._publisher.rdma_weights()

    def wanted_weights(self) -> dict[str, int]:
        """What the page says, or in observe would say, by netdev."""
        return self._publisher.wanted_weights()

    def save(self) -> None:
        """Queue the state documents if anything changed since."""
        self._save_at = 0
        if not self._changed_state:
            return
        now = time.monotonic_ns()
        put = self.recorder.put_state("carrier", self.carrier_tracker.ledger.save())
        # A queue that is full takes none: again at the next tick.
        self._changed_state = not (
            put and self.recorder.put_state("daemon", state_document(self, now))
        )

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
            "metrics_endpoint": self.endpoint_refused(),
        }

    def record(self, kind: EventKind, reason: str, **data: Any) -> None:  # noqa: ANN401
        """One host event."""
        self._emit([event(kind, reason=reason, data=data)])

    def emit(self, events: Sequence[Event]) -> None:
        """Record events that were made elsewhere."""
        self._emit(events)

    def close(self) -> None:
        """Release descriptors."""
        for timer in (self._timer, self._late):
            if timer is not None:
                timer.cancel()
        self.carrier_sources.close()
        if self.feed.reader is not None:
            self.feed.reader.close()

    def views(self) -> list[PathView] | None:
        """All UDP paths as the prober sees them now; None: there is no prober."""
        table = self.tables.read(self.feed)
        return table.views if table else None

    def path_rows(self, *, recent: bool = False) -> list[PathRow] | None:
        """The prober's UDP paths, of now or of this tick; None: there is no prober."""
        table = self.tables.read(self.feed, recent=recent)
        return table.rows if table else None

    def _engine_events(self, evaluation: Evaluation) -> list[Event]:
        flaps = self.config.damping.second_tier_flaps
        events = evaluation_events(evaluation, flaps_per_hour=flaps, known=self._refused_links)
        self._refused_links = evaluation.refused
        return events

    def _prober_told(self, what: str, numbers: dict[str, int]) -> None:
        self.losses.rebase()
        if "pid" in numbers:
            self.prober_seen(numbers["pid"])
        self._emit([event(EventKind.PROBER, reason=f"prober {what}", data=dict(numbers))])

    def _emit(self, events: Sequence[Event]) -> None:
        events, self._held = [*self._held, *events], []
        if not events:
            return
        self.recorder.put(events)
        for item in events:
            document = item.to_dict() | {"host": self.config.host.name}
            self.follow(document)
            skip = {"kind", "wall_ns", "mono_ns", "data", "host"}
            fields = {key: value for key, value in document.items() if key not in skip}
            log = getattr(self._log, event_level(item))
            log(item.kind.value, **fields, **item.data)

    def _arm(self, due_at: int | None, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_at is not None:
            delay = max(0.001, (due_at - now) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay, self.step)
