"""``fabricd``: starts the host daemon, serves until told to stop.

Signals: TERM and INT stop gracefully (weights are given back), HUP reloads the configuration and
keeps the old one when the new one is wrong.
"""

from __future__ import annotations

import fabricd.process.lazy_imports  # noqa: F401  # isort: skip - before all that it keeps small

import asyncio
import contextlib
import fcntl
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

from fabricd import __version__
from fabricd.config.loader import Config, ConfigError, read
from fabricd.config.source import ConfigSource
from fabricd.control.access import Access
from fabricd.control.requests import CHANGING, LARGE, Requests
from fabricd.control.server import ControlServer
from fabricd.jobs.directory import prepare_directory, prepare_stats_directory
from fabricd.links.ibports import IbPorts
from fabricd.links.inventory import Inventory
from fabricd.links.lldp_source import LldpSource
from fabricd.links.portwatch import PortWatch
from fabricd.links.watcher import LinkWatcher
from fabricd.nics.watch import NicWatch
from fabricd.operate.manager import OverrideManager
from fabricd.operate.store import OverrideStore
from fabricd.probes.peer_index import PeerIndex
from fabricd.process import arguments, cpu_affinity, realtime
from fabricd.process.blocking_call import started_executor
from fabricd.procfs.netdev_bytes import NetdevBytes
from fabricd.procfs.softnet import SoftnetStat
from fabricd.runtime.escalation import EscalationSlot, known_peers
from fabricd.runtime.host import Host, Readers, Stores, make_host
from fabricd.runtime.reloader import Reloader
from fabricd.runtime.settings import HostSettings
from fabricd.steer.modes import Modes
from fabricd.steer.page import PageError, SteerPage
from fabricd.timeline.recorder import Recorder
from fabricd.timeline.restart_state import open_store, restore, retention, take_over
from fabricd.views import report
from fabricd.views.metrics_endpoint import MetricsEndpoint
from fabricd.views.services import Services
from telemetry.events import EventKind
from telemetry.service import durable, logs
from telemetry.service.shown import shown
from telemetry.service.systemd_notify import Notifier, passed_sockets
from telemetry.timeline import boot_id

TICK_S = 0.5
LOOKS = 4
"""Times a tick that losses are read while a link is suspected of them."""
SCAN_S = 1.0
PORTS_S = 0.5
"""Between two looks at the verbs ports."""
SWITCH_S = 0.001
"""A thread that computes gives Python's lock to the loop after this; by default 5 ms, and a change
of a link's state takes the lock several times."""
SAVE_TICKS = 4
EXIT_ERROR, EXIT_CONFIG = 1, 2


class StartError(Exception):
    """The daemon cannot start; the text says why."""


class RunError(Exception):
    """The daemon stopped because of an error of its own."""


class Daemon:
    """Owns what has to be opened and closed."""

    def __init__(self, source: ConfigSource) -> None:
        self.source = source
        self.notifier = Notifier()
        self._log = structlog.get_logger()
        self._stop = asyncio.Event()
        self._lock_fd = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._failure = ""
        self._metrics: MetricsEndpoint
        self._control: ControlServer
        self._escalation: EscalationSlot
        self._nics: NicWatch
        self._softnet: SoftnetStat
        self._netdev_bytes: NetdevBytes
        self._reloader: Reloader

    async def run(self) -> None:
        """Start, serve, stop.

        Raises:
            StartError: something that the daemon cannot do without is missing.
            RunError: a part of it failed; weights were given back all the same.
        """
        loop = asyncio.get_running_loop()
        sys.setswitchinterval(SWITCH_S)
        try:
            loop.set_default_executor(started_executor())
        except RuntimeError as error:
            raise StartError(str(error)) from error
        host, control = await self._start()
        loop.set_exception_handler(self._unhandled)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reloader.hang_up)
        # What lives now lives for ever: keep it out of the collector's pauses.
        gc.collect()
        gc.freeze()
        self._schedule(self.source.config)
        self.notifier.ready(f"mode {host.publisher.modes.effective.name.lower()}")
        try:
            await self._stop.wait()
        finally:
            await self._shut_down(host, control)
        if self._failure:
            raise RunError(self._failure)

    async def _start(self) -> tuple[Host, ControlServer]:
        config = self.source.config
        self._pin(config)
        run, state = Path(config.paths.run_dir), Path(config.paths.state_dir)
        now = time.monotonic_ns()
        try:
            prepare_directory(run, 0o755)
            prepare_directory(state, 0o750)  # the timeline says which jobs run here, and how
            readable = prepare_stats_directory(run / "stats")
            self._lock(run / "fabricd.lock")
        except OSError as error:
            raise StartError(f"{error.filename or run}: {error.strerror}") from error
        if not readable:
            self._log.warning("stats pages cannot be read: neither ACL nor setgid", where=str(run))
        page = SteerPage(run / "steer", incarnation=time.time_ns())
        try:
            page.open(now)
        except PageError as error:
            raise StartError(str(error)) from error
        modes = Modes(state / "mode", Path(config.paths.stop_file))
        database = state / "timeline.db"
        opener = open_store(database, config.host.name, retention(config))
        store, document, ledger, totals = await restore(opener, boot_id())
        recorder = Recorder(opener)
        inventory = Inventory()
        watcher = LinkWatcher(inventory)
        await watcher.load()  # First: without the links' addresses there are no paths to restore.
        settings = HostSettings(config, known_peers(config))
        softnet = self._softnet = SoftnetStat()
        netdev_bytes = self._netdev_bytes = NetdevBytes(lambda: settings.netdevs)
        overrides = OverrideManager(OverrideStore(state / "operator.json"))
        host = make_host(
            settings, inventory, Stores(modes, page, recorder, ledger, totals, overrides),
            readers=Readers(backlogs=softnet.read, bytes=netdev_bytes.read),
            prober_seen=self._pin_prober,
        )  # fmt: skip
        for what in [*take_over(host.lasting, document), *host.operator.open()]:
            self._log.warning("state not restored", what=what)
        recorder.start(store)
        ports = IbPorts(_netdevs(config), config.rdma_devices)
        port_watch = PortWatch(ports, host.nic_input, host.events.record)
        host.nic_input.ports_found(ports.ports)
        self._log.info("started", version=__version__, host=config.host.name, ib=ports.note,
                       mode=modes.effective.name.lower(), stopped=modes.stopped)  # fmt: skip
        metrics = self._metrics = MetricsEndpoint(host.events, host.evaluator)
        escalation = self._escalation = EscalationSlot(host, self._fail)
        control = self._control = ControlServer(
            run / "ctl.sock", changing=CHANGING, large=LARGE, access=_access(config)
        )
        services = Services(
            start_wall_s=time.time(),
            source=self.source,
            escalation=lambda: escalation.now,
            endpoint=lambda: metrics.state,
            refused={
                "control_socket": lambda: control.refused,
                "netlink": lambda: watcher.refused,
                "metrics_endpoint": lambda: metrics.refused,
            },
            receive_note=lambda: softnet.note,
            payload_note=lambda: netdev_bytes.note,
            ports_note=lambda: port_watch.note,
        )
        host.events.subscribe(control.broadcast)
        reloader = self._reloader = Reloader(
            self.source, self.notifier, host.events.record, address_of=inventory.address_of,
            apply=lambda old, new, peers: self._reconfigure(host, old, new, peers),
        )  # fmt: skip
        requests = Requests(host, services, self.source, database, reloader.reload)
        try:
            await control.start(requests.handlers())
        except OSError as error:
            raise StartError(f"{error}") from error
        host.events.record(EventKind.DAEMON, "started", version=__version__, pid=os.getpid())
        host.evaluator.step()
        try:
            escalation.start()
        except OSError as error:
            raise StartError(f"job socket: {error}") from error
        metrics.start(
            config.metrics.listen, passed_sockets(), lambda: report.snapshot(host, services)
        )
        self._nics = NicWatch(
            settings, host.engine, host.nics, host.nic_input, asyncio.get_running_loop()
        )
        self._nics.configure(config)
        jobs: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("prober", host.probe_loop.run()),
            ("netlink", watcher.run(host.probe_loop.devices_changed)),
            ("tick", self._tick(host)),
            ("scan", self._scan(host)),
            ("ports", self._watch_ports(port_watch)),
            ("forecast", self._nics.forecast()),
            ("reload", reloader.run()),
            ("peers_file", reloader.watch()),
        ]
        for name, work in jobs:
            self._tasks.append(self._begin(name, work))
        self._hear_lldp(host, config)
        return host, control

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        return task

    def _hear_lldp(self, host: Host, config: Config) -> None:
        """Begin with LLDP or end it, as the configuration says, for the links that it names."""
        where = host.detectors.localization
        if not config.topology.lldp and where.lldp is not None:
            self._tasks.pop().cancel()  # the last one, always
            where.use_lldp(None)
        elif config.topology.lldp and where.lldp is None:
            source = LldpSource(_netdevs(config), where.map_changed)
            where.use_lldp(source)
            self._tasks.append(self._begin("lldp", source.run()))
        elif where.lldp is not None:
            where.lldp.watch(_netdevs(config))

    def _lock(self, path: Path) -> None:
        self._lock_fd = durable.open_lock(path)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"{path}: another fabricd runs with this run_dir") from None

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._stop.is_set():
            return
        # A part that ended cannot be trusted to be missed: stop, and be started again.
        self._fail(f"task {task.get_name()} ended: {task.exception()!r}")

    def _fail(self, why: str) -> None:
        self._log.critical("stopping", error=why)
        self._failure = self._failure or why
        self._stop.set()

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        text = f"{context.get('message')}: {context.get('exception')!r}"
        if "handle" in context:  # One of our own callbacks: what it should have done is not done.
            self._fail(text)
        else:
            self._log.error("unhandled", error=text)

    async def _scan(self, host: Host) -> None:
        """Jobs' pages, which may be hostile: nothing else waits for them."""
        while True:
            await asyncio.sleep(SCAN_S)
            host.events.emit(await host.jobs.scan(settled=host.saver.settled))
            if host.jobs.ended:
                host.saver.mark_changed()

    async def _watch_ports(self, watch: PortWatch) -> None:
        """The verbs ports behind the links, whose driver may hang."""
        while True:
            await watch.look(_netdevs(self.source.config), self.source.config.rdma_devices)
            await asyncio.sleep(PORTS_S)

    async def _tick(self, host: Host) -> None:
        """Heartbeat, stop file, loss, state, watchdog."""
        number = 0
        while True:
            looks = LOOKS if host.probe_tick.suspects_loss else 1
            for _ in range(looks - 1):
                await asyncio.sleep(TICK_S / looks)
                host.probe_tick.feed_loss(between=True)
            await asyncio.sleep(TICK_S / looks)
            number += 1
            if host.publisher.modes.check_stop():
                there = "present" if host.publisher.modes.stopped else "removed"
                host.publisher.mode_changed(f"stop file {there}")
            before = host.evaluator.cycles
            host.operator.tick(time.monotonic_ns())
            host.probe_loop.wake()
            await host.probe_tick.ask_neighbours()
            host.probe_tick.feed_loss()
            host.probe_tick.watch_probing()
            host.nic_input.nics_checked(self._nics.check())
            if number % SAVE_TICKS == 0:
                host.saver.save()
            if host.evaluator.cycles > before:
                self.notifier.watchdog()

    def _reconfigure(self, host: Host, old: Config, new: Config, peers: PeerIndex) -> None:
        """Another configuration is in force; ``peers``: the index of its peers."""
        self._pin(new)
        self._schedule(new)
        if (header := host.prober.feed.header()) is not None:
            self._pin_prober(header.pid)
        self._control.regard(_access(new))
        host.events.recorder.retention = retention(new)
        host.reconfigure(new, peers)
        self._hear_lldp(host, new)
        self._nics.configure(new)
        self._escalation.configure(old, new)

    def _pin(self, config: Config) -> None:
        """Put this process on the CPUs that it may use; its threads to come follow."""
        cpus = cpu_affinity.wanted(config.host.cpus)
        if cpus is None:
            return
        try:
            cpu_affinity.pin(0, cpus)
        except OSError as error:
            self._log.error("not pinned", cpus=config.host.cpus, error=error.strerror)

    def _schedule(self, config: Config) -> None:
        """Above the job's threads, or among them, as the configuration says."""
        if not config.host.realtime:
            realtime.leave()
        elif why := realtime.enter():
            self._log.warning("not real-time: decisions wait for a core", reason=why)

    def _pin_prober(self, pid: int) -> None:
        """The prober is a process of its own, of the same user: it may be pinned from here."""
        cpus = cpu_affinity.wanted(self.source.config.host.cpus)
        if cpus is None or not cpu_affinity.is_prober(pid):
            return
        try:
            cpu_affinity.pin(pid, cpus)
        except OSError as error:
            self._log.error("prober not pinned", pid=pid, error=error.strerror)

    async def _shut_down(self, host: Host, control: ControlServer) -> None:
        self.notifier.stopping()
        self._reloader.close()
        for task in self._tasks:
            task.remove_done_callback(self._task_ended)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._nics.close(0.2)
        self._softnet.close()
        self._netdev_bytes.close()
        host.publisher.give_back()
        host.events.record(EventKind.DAEMON, "stopped")
        host.saver.mark_changed()
        host.saver.save()
        await self._escalation.close()
        await control.stop()
        await self._metrics.close()
        if not await asyncio.to_thread(host.events.recorder.stop):
            self._log.error("timeline incomplete", waiting=host.events.recorder.waiting)
        host.publisher.page.close()
        host.close()
        self._log.info("stopped")


def _netdevs(config: Config) -> list[str]:
    return [link.netdev for link in config.links]


def _access(config: Config) -> Access:
    return Access.of(config.control.read_group, config.control.admin_group)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 cannot run, 2 wrong usage or file."""
    parser = arguments.parser(
        "fabricd", "Sees failing links and steers collective traffic around them.", " --check"
    )
    parser.add_argument("--check", action="store_true", help="validate the file and exit")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument("--version", action="version", version=f"fabricd {__version__}")
    options = parser.parse_args(argv)
    try:
        loaded = read(options.config)
    except ConfigError as error:
        sys.stderr.write(f"{shown(str(error))}\n")
        return EXIT_CONFIG
    if options.check:
        sys.stdout.write(f"{options.config}: valid\n")
        return 0
    logs.setup(style=options.log_format, level=options.log_level)
    os.umask(0o022)
    for altname, kernel in loaded.altnames:
        structlog.get_logger().info("altname of a link", link=kernel, configured=altname)
    source = ConfigSource(
        options.config, loaded.config, files=list(loaded.files), peers_file=loaded.peers_file
    )
    run: Callable[[], Coroutine[Any, Any, None]] = lambda: Daemon(source).run()  # noqa: E731
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())
    except StartError as error:
        sys.stderr.write(f"fabricd cannot start: {shown(str(error))}\n")
        return EXIT_ERROR
    except RunError as error:
        sys.stderr.write(f"fabricd failed: {shown(str(error))}\n")
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
