"""One host: the parts that run on the daemon's event loop, and how they are put together.

Facts come in by `probe_loop`, `probe_tick` and `nic_input`; `evaluator` has the engine judge them;
`state_publisher` writes the steer page; `event_stream` and `state_saver` keep what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fabricd.config.loader import Config
from fabricd.config.tables import PeerTable
from fabricd.delay.fabric import FabricTimes
from fabricd.delay.watch import DelayWatch
from fabricd.detect.localization import Localization
from fabricd.detect.loss import LossTest
from fabricd.detect.progress import ByteProgress
from fabricd.detect.progress import Reading as ByteReading
from fabricd.detect.receive_path import Reading as BacklogReading
from fabricd.detect.receive_path import ReceivePath
from fabricd.engine import Engine
from fabricd.jobs.stats_pages import Jobs
from fabricd.links.carrier import CarrierTracker
from fabricd.links.carrier_sources import CarrierSources
from fabricd.links.flaps import FlapLedger
from fabricd.links.interfaces import InterfaceWatch
from fabricd.links.inventory import Inventory
from fabricd.nics.monitor import NicMonitor
from fabricd.operate.manager import OverrideManager
from fabricd.probes.counts import ProbeCounts
from fabricd.probes.feed import ProberFeed
from fabricd.probes.monitor import ProbeMonitor
from fabricd.probes.path_table import PathTables
from fabricd.probes.peer_index import PeerIndex
from fabricd.runtime.detectors import Detectors
from fabricd.runtime.evaluator import Evaluator
from fabricd.runtime.event_stream import EventStream
from fabricd.runtime.nic_input import NicInput
from fabricd.runtime.operator import OperatorActions
from fabricd.runtime.probe_loop import ProbeLoop
from fabricd.runtime.probe_planner import ProbePlanner
from fabricd.runtime.probe_tick import ProbeTick
from fabricd.runtime.prober import Prober
from fabricd.runtime.settings import HostSettings
from fabricd.runtime.state_publisher import StatePublisher
from fabricd.runtime.state_saver import StateSaver
from fabricd.steer.modes import Modes
from fabricd.steer.page import SteerPage
from fabricd.timeline.recorder import Recorder
from fabricd.timeline.restart_state import LastingParts, state_document
from telemetry.events import LinkState


@dataclass(frozen=True, slots=True)
class Host:
    """All parts of one host; each owns its state. `make_host` makes one."""

    settings: HostSettings
    inventory: Inventory
    engine: Engine
    prober: Prober
    carriers: CarrierSources
    nics: NicMonitor
    jobs: Jobs
    detectors: Detectors
    lasting: LastingParts
    events: EventStream
    saver: StateSaver
    publisher: StatePublisher
    evaluator: Evaluator
    planner: ProbePlanner
    probe_loop: ProbeLoop
    probe_tick: ProbeTick
    nic_input: NicInput
    operator: OperatorActions

    @property
    def config(self) -> Config:
        """The configuration in use."""
        return self.settings.config

    def reconfigure(self, config: Config, peers: PeerIndex | None = None) -> None:
        """Take another valid configuration; what stays keeps its state.

        ``peers`` is the index of its peers, if there is one already.
        """
        self.settings.replace(config, peers)
        self._apply_settings()

    def discover(self, peers: tuple[PeerTable, ...]) -> None:
        """Probe the hosts that were found over the broker, where the configuration names none."""
        self.settings.discover(peers)
        self._apply_settings()

    def close(self) -> None:
        """Release descriptors and timers; page and recorder are the daemon's to close."""
        self.evaluator.close()
        self.probe_loop.close()
        self.carriers.close()
        self.prober.feed.close()

    def _apply_settings(self) -> None:
        config, netdevs = self.settings.config, self.settings.netdevs
        self.planner.plan()
        self.nics.configure(netdevs, config.link_speeds)
        self.publisher.modes.retarget(Path(config.paths.stop_file))
        self.operator.refresh()
        self.jobs.configure(netdevs)
        self.carriers.netlink()
        self.evaluator.step()


@dataclass(frozen=True, slots=True)
class Stores:
    """What a host keeps on disks and in shared memory, opened already.

    Attributes:
        modes: of the host and its groups.
        page: the steer page.
        recorder: of the timeline.
        ledger: flaps of this boot that are accounted for.
        totals: link → flaps so far.
        overrides: of the operators.
    """

    modes: Modes
    page: SteerPage
    recorder: Recorder
    ledger: FlapLedger
    totals: dict[str, int]
    overrides: OverrideManager


@dataclass(frozen=True, slots=True)
class Readers:
    """What the engine reads of the kernel before a verdict of silence; None: nothing to wait for.

    Attributes:
        backlogs: of the receive path.
        bytes: counters of the links.
    """

    backlogs: Callable[[], BacklogReading | None] = lambda: None
    bytes: Callable[[], ByteReading | None] = lambda: None


def make_host(
    settings: HostSettings,
    inventory: Inventory,
    stores: Stores,
    *,
    readers: Readers = Readers(),
    feed: ProberFeed | None = None,
    prober_seen: Callable[[int], None] = lambda _: None,
) -> Host:
    """Put a host together; the event loop runs.

    Args:
        settings: the configuration in use.
        inventory: of the network devices.
        stores: what it keeps.
        readers: what verdicts of silence wait for.
        feed: the prober; None: the one of the run directory.
        prober_seen: called with the process id of each prober that appears.
    """
    config, run_dir = settings.config, Path(settings.config.paths.run_dir)
    feed = feed or ProberFeed(run_dir)
    engine = Engine(
        config, [], receive_path=ReceivePath(readers.backlogs), progress=ByteProgress(readers.bytes)
    )
    tracker = CarrierTracker(engine, stores.ledger, stores.totals)
    carriers = CarrierSources(tracker, feed, inventory)
    detectors = Detectors(
        losses=LossTest(config.host.name), localization=Localization(config.host.name),
        delay=DelayWatch(FabricTimes(run_dir)), probing=ProbeMonitor(), interfaces=InterfaceWatch(),
    )  # fmt: skip
    nics = NicMonitor(settings.netdevs, config.link_speeds)
    jobs = Jobs(
        run_dir / "stats", settings.netdevs, time.monotonic_ns(),
        look=detectors.delay.jobs_seen, fault=lambda: _out_of_service(engine),
    )  # fmt: skip
    lasting = LastingParts(engine, detectors.losses, jobs, nics, tracker, stores.page)
    events = EventStream(settings, stores.recorder)
    saver = StateSaver(stores.recorder, stores.ledger, lambda now: state_document(lasting, now))
    publisher = StatePublisher(settings, engine, events, modes=stores.modes, page=stores.page)
    prober = Prober(feed, PathTables(engine, feed), ProbeCounts(time.monotonic_ns()))
    evaluator = Evaluator(settings, engine, prober, publisher=publisher, events=events, saver=saver)
    planner = ProbePlanner(settings, inventory, engine, prober, detectors)
    return Host(
        settings, inventory, engine, prober, carriers, nics, jobs, detectors,
        lasting, events, saver, publisher, evaluator, planner,
        ProbeLoop(
            engine, prober, carriers=carriers, losses=detectors.losses, planner=planner,
            evaluator=evaluator, events=events, saver=saver, prober_seen=prober_seen,
        ),
        ProbeTick(
            settings, engine, prober, detectors,
            planner=planner, evaluator=evaluator, events=events, saver=saver,
        ),
        NicInput(engine, nics, tracker, planner=planner, evaluator=evaluator),
        OperatorActions(
            settings, engine, stores.overrides,
            publisher=publisher, evaluator=evaluator, events=events,
        ),
    )  # fmt: skip


def _out_of_service(engine: Engine) -> bool:
    """Whether this host itself sees what may end a job."""
    states = {link.health.state for link in engine.links}
    states |= {path.health.state for path in engine.paths}
    return bool(engine.silent_hosts or states & {LinkState.DOWN, LinkState.HOLD})
