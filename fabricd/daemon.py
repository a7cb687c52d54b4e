"""``fabricd``: starts the host daemon, serves until told to stop.

Signals: TERM and INT stop gracefully (weights are given back), HUP reloads the configuration and
keeps the old one when the new one is wrong.
"""

from __future__ import annotations

import argparse
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

from fabricd import __version__, logs, report
from fabricd.config import Config, ConfigError, Problem, load
from fabricd.control import Caller, ControlServer, Document, RequestError, may_change
from fabricd.host import Host
from fabricd.jobs import prepare_directory, prepare_stats_directory
from fabricd.links.ibports import IbPorts
from fabricd.links.inventory import Inventory
from fabricd.links.watcher import LinkWatcher
from fabricd.recorder import Recorder
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import PageError, SteerPage
from fabricd.systemd_notify import Notifier
from fabricd.timeline_state import open_store, restore
from telemetry.events import EventKind
from telemetry.livejobs import live_jobs
from telemetry.metrics import MetricsServer
from telemetry.timeline import Retention, Timeline, TimelineError, boot_id

TICK_S = 0.5
SCAN_S = 1.0
SNAPSHOT_TICKS = 2
SAVE_TICKS = 4
EXIT_ERROR, EXIT_CONFIG = 1, 2


class StartError(Exception):
    """The daemon cannot start; the text says why."""


class RunError(Exception):
    """The daemon stopped because of an error of its own."""


class Daemon:
    """Owns what has to be opened and closed."""

    def __init__(self, config: Config, file: Path) -> None:
        self.config = config
        self.file = file
        self.notifier = Notifier()
        self._log = structlog.get_logger()
        self._stop = asyncio.Event()
        self._lock_fd = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics: MetricsServer | None = None
        self._failure = ""

    async def run(self) -> None:
        """Start, serve, stop.

        Raises:
            StartError: something that the daemon cannot do without is missing.
            RunError: a part of it failed; weights were given back all the same.
        """
        host, control = await self._start()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload, host)
        # What lives now lives for ever: keep it out of the collector's pauses.
        gc.collect()
        gc.freeze()
        self.notifier.ready(f"mode {host.modes.effective.name.lower()}")
        try:
            await self._stop.wait()
        finally:
            await self._shut_down(host, control)
        if self._failure:
            raise RunError(self._failure)

    async def _start(self) -> tuple[Host, ControlServer]:
        config = self.config
        run, state = Path(config.paths.run_dir), Path(config.paths.state_dir)
        now = time.monotonic_ns()
        try:
            for directory in (run, state):
                prepare_directory(directory, 0o755)
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
        retention = Retention(config.timeline.retention_days, config.timeline.max_mb)
        opener = open_store(database, config.host.name, retention)
        store, document, ledger, totals = await restore(opener, boot_id())
        recorder = Recorder(opener)
        inventory = Inventory()
        watcher = LinkWatcher(inventory)
        await watcher.load()  # First: without the links' addresses there are no paths to restore.
        host = Host(config, modes=modes, page=page, recorder=recorder, ledger=ledger,
                    totals=totals, inventory=inventory)  # fmt: skip
        for what in host.restore(document):
            self._log.warning("state not restored", what=what)
        recorder.start(store)
        watcher.changed = host.devices_changed
        host.netlink_refused = lambda: watcher.refused
        ports = IbPorts([link.netdev for link in config.links])
        host.ib_note = ports.note
        self._log.info("started", version=__version__, host=config.host.name, ib=ports.note,
                       mode=modes.effective.name.lower(), stopped=modes.stopped)  # fmt: skip
        control = ControlServer(run / "ctl.sock", self._handlers(host, database))
        host.follow = control.broadcast
        host.control_refused = lambda: control.refused
        try:
            await control.start()
            self._listen(host)
        except OSError as error:
            raise StartError(f"{error}") from error
        host.record(EventKind.DAEMON, "started", version=__version__, pid=os.getpid())
        host.step()
        jobs: list[tuple[str, Coroutine[Any, Any, None]]] = [
            ("prober", host.feed.run()),
            ("netlink", watcher.run()),
            ("tick", self._tick(host)),
            ("scan", self._scan(host, ports)),
        ]
        for name, work in jobs:
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        return host, control

    def _lock(self, path: Path) -> None:
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"{path}: another fabricd runs with this run_dir") from None

    def _listen(self, host: Host) -> None:
        listen = self.config.metrics.listen
        if not listen:
            return
        host.refresh_snapshot()
        try:
            self._metrics = MetricsServer(listen, host.current_snapshot)
        except (OSError, ValueError) as error:
            raise StartError(f"metrics.listen {listen}: {error}") from error

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

    async def _scan(self, host: Host, ports: IbPorts) -> None:
        """What may take long (other people's pages, verbs devices), away from the heartbeat."""
        while True:
            await asyncio.sleep(SCAN_S)
            host.emit(await host.jobs.scan(settled=host.settled))
            if host.jobs.ended:
                host.mark_changed()
            if ports.netdevs:
                host.ports_read(await asyncio.to_thread(ports.read))

    async def _tick(self, host: Host) -> None:
        """Heartbeat, stop file, loss, state, watchdog."""
        number = 0
        while True:
            await asyncio.sleep(TICK_S)
            number += 1
            if host.modes.check_stop():
                there = "present" if host.modes.stopped else "removed"
                host.mode_changed(f"stop file {there}")
            before = host.cycles
            host.wake()
            host.feed_loss()
            if number % SNAPSHOT_TICKS == 0:
                host.refresh_snapshot()
            if number % SAVE_TICKS == 0:
                host.save()
            if host.cycles > before:
                self.notifier.watchdog()

    def _reload(self, host: Host) -> None:
        self.notifier.reloading()
        try:
            config = load(self.file)
            self._refuse_fixed(config)
        except ConfigError as error:
            for problem in error.problems:
                self._log.error("configuration refused, the old one stays", problem=str(problem))
            host.record(
                EventKind.DAEMON, "reload refused", problem=str(error.problems[0])[:300],
                problems=len(error.problems),
            )  # fmt: skip
        else:
            self.config = config
            host.reconfigure(config)
            host.record(EventKind.DAEMON, "reloaded")
        self.notifier.ready("reloaded")

    def _refuse_fixed(self, config: Config) -> None:
        old = self.config
        fixed = [
            ("host.name", old.host.name, config.host.name),
            ("paths.run_dir", old.paths.run_dir, config.paths.run_dir),
            ("paths.state_dir", old.paths.state_dir, config.paths.state_dir),
            ("metrics.listen", old.metrics.listen, config.metrics.listen),
        ]
        problems = [
            Problem(str(self.file), 0, key, f"cannot change without a restart; allowed: {was}")
            for key, was, new in fixed
            if was != new
        ]
        if problems:
            raise ConfigError(problems)

    async def _shut_down(self, host: Host, control: ControlServer) -> None:
        self.notifier.stopping()
        for task in self._tasks:
            task.remove_done_callback(self._task_ended)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        host.give_back()
        host.record(EventKind.DAEMON, "stopped")
        host.mark_changed()
        host.save()
        await control.stop()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        if not await asyncio.to_thread(host.recorder.stop):
            self._log.error("timeline incomplete", waiting=host.recorder.waiting)
        host.page.close()
        host.close()
        self._log.info("stopped")

    # -- control socket -----------------------------------------------------------------------

    def _handlers(self, host: Host, database: Path) -> dict[str, Any]:
        async def status(_request: Document, _caller: Caller) -> Any:  # noqa: ANN401
            return report.status(host)

        async def links(_request: Document, _caller: Caller) -> Any:  # noqa: ANN401
            return report.links(host)

        async def config(_request: Document, _caller: Caller) -> Any:  # noqa: ANN401
            return {"file": str(self.file), "config": self.config.model_dump(mode="json")}

        async def timeline(request: Document, _caller: Caller) -> Any:  # noqa: ANN401
            query = _timeline_query(request)
            return await asyncio.to_thread(_query, database, query)

        async def jobs(_request: Document, _caller: Caller) -> Any:  # noqa: ANN401
            return await asyncio.to_thread(live_jobs, Path(self.config.paths.run_dir) / "stats")

        async def promote(request: Document, caller: Caller) -> Any:  # noqa: ANN401
            if not may_change(caller):
                raise RequestError("only root or the daemon's user may change the mode")
            try:
                mode = Mode.parse(str(request.get("mode", "")))
                host.modes.promote(mode)
            except (ValueError, OSError) as error:
                raise RequestError(str(error)) from error
            host.mode_changed(f"promoted to {mode.name.lower()} by uid {caller.uid}")
            return {
                "promoted": mode.name.lower(),
                "mode": host.modes.effective.name.lower(),
                "stop_file": host.modes.stopped,
            }

        return {"status": status, "links": links, "config": config, "timeline": timeline,
                "promote": promote, "jobs": jobs}  # fmt: skip


def _timeline_query(request: Document) -> dict[str, Any]:
    query: dict[str, Any] = {"limit": 1000}
    wanted: dict[str, type] = {
        "since_ns": int, "until_ns": int, "link": str, "kind": str, "limit": int
    }  # fmt: skip
    for key, kind in wanted.items():
        value = request.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RequestError(f"{key} must be {'text' if kind is str else 'an integer'}")
        query[key] = value
    if not 0 <= query["limit"] <= 100_000:
        raise RequestError("limit must be from 0 to 100000")
    for key in ("since_ns", "until_ns"):
        if key in query and not -(2**63) <= query[key] < 2**63:
            raise RequestError(f"{key} is out of range")
    if "kind" in query and query["kind"] not in {kind.value for kind in EventKind}:
        raise RequestError(f"kind must be one of {', '.join(kind.value for kind in EventKind)}")
    return query


def _query(database: Path, query: dict[str, Any]) -> list[dict[str, object]]:
    try:
        with Timeline(database, read_only=True) as timeline:
            return [event.to_dict() for event in timeline.query(**query)]
    except TimelineError as error:
        raise RequestError(f"timeline: {error}") from error


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 cannot run, 2 wrong usage or file."""
    parser = argparse.ArgumentParser(
        prog="fabricd",
        description="Sees failing links and steers collective traffic around them.",
        epilog="example: fabricd --config /etc/fabricd/fabricd.toml --check",
    )
    parser.add_argument("--config", type=Path, default=Path("/etc/fabricd/fabricd.toml"))
    parser.add_argument("--check", action="store_true", help="validate the file and exit")
    parser.add_argument("--log-format", choices=("auto", "logfmt", "json"), default="auto")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument("--version", action="version", version=f"fabricd {__version__}")
    options = parser.parse_args(argv)
    try:
        config = load(options.config)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    if options.check:
        sys.stdout.write(f"{options.config}: valid\n")
        return 0
    logs.setup(style=options.log_format, level=options.log_level)
    os.umask(0o022)
    run: Callable[[], Coroutine[Any, Any, None]] = lambda: Daemon(config, options.config).run()  # noqa: E731
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())
    except StartError as error:
        sys.stderr.write(f"fabricd cannot start: {error}\n")
        return EXIT_ERROR
    except RunError as error:
        sys.stderr.write(f"fabricd failed: {error}\n")
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
