"""``fabric-clock``: keeps fabric time on this host and publishes it on the clock page.

A process of its own: fits take numpy, which the daemon does without, and what the daemon does in a
storm of flaps must not keep time from being told.
"""

from __future__ import annotations

import fabricd.process.lazy_imports  # noqa: F401  # isort: skip - before all that it keeps small

import contextlib
import fcntl
import gc
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from clocksync.pair.model import Rules
from fabricd.clock.chrony import Chrony
from fabricd.clock.clocks import Clocks
from fabricd.clock.ptp import PtpEdge
from fabricd.clock.rate import RateKeeper
from fabricd.clock.service import STEP_S, ClockService
from fabricd.config.loader import ConfigError, load
from fabricd.config.tables import Config
from fabricd.probes.client import host_id
from fabricd.process import arguments, cpu_affinity
from telemetry.service import durable, logs
from telemetry.service.shown import shown
from telemetry.service.systemd_notify import Notifier

STORE_S = 1.0
GLANCE_S = 0.034
EXIT_ERROR, EXIT_CONFIG = 1, 2


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 cannot run, 2 wrong usage or file."""
    parser = arguments.parser(
        "fabric-clock", "Keeps fabric time on this host and publishes it on the clock page."
    )
    options = parser.parse_args(argv)
    try:
        config = load(options.config, shared_peers=False)
    except ConfigError as error:
        sys.stderr.write(f"{shown(str(error))}\n")
        return EXIT_CONFIG
    logs.setup(style=options.log_format)
    os.umask(0o022)
    if (cpus := cpu_affinity.wanted(config.host.cpus)) is not None:
        cpu_affinity.pin(os.getpid(), cpus)
    run_dir = Path(config.paths.run_dir)
    try:
        lock = durable.open_lock(run_dir / "fabric-clock.lock")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        keeper = RateKeeper(Path(config.paths.state_dir))
        service = configured(config, rate=keeper.start())
    except OSError as error:
        where = error.filename or run_dir
        sys.stderr.write(f"fabric-clock cannot start: {where}: {error.strerror}\n")
        return EXIT_ERROR
    notifier = Notifier()
    run(service, notifier, keeper)
    return 0


def configured(config: Config, *, clocks: Clocks | None = None, rate: float = 0.0) -> ClockService:
    """The service that a configuration asks for.

    Args:
        config: of this host.
        clocks: default: the host's own.
        rate: of fabric time over the raw clock, less one, as an earlier boot left it.

    Raises:
        OSError: a page cannot be written.
    """
    host, table = host_id(config.host.name), config.clock
    edge = chrony = None
    if table.ptp_masters:
        edge = PtpEdge(
            host, table.ptp_masters, domain=table.ptp_domain, interface=table.ptp_interface
        )
    if table.chrony_socket:
        chrony = Chrony(Path(table.chrony_socket))
    return ClockService(
        host, Path(config.paths.run_dir), priority=table.priority, clocks=clocks, rate=rate,
        edge=edge, chrony=chrony, may_move=table.move_paths,
        paths=Rules(least_way_ns=table.least_way_ns),
    )  # fmt: skip


def settle() -> None:
    """What is loaded by now stays: looking through it for garbage would hold a step up."""
    gc.collect()
    gc.freeze()


def run(service: ClockService, notifier: Notifier, keeper: RateKeeper | None = None) -> None:
    """Ten steps a second until TERM or INT."""
    stopped = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    notifier.ready("started")
    settle()
    due, store = time.monotonic(), 0.0
    with contextlib.closing(service):
        while not stopped:
            service.tick()
            now = time.monotonic()
            if now >= store:
                service.store()
                if keeper is not None:
                    keeper.look(service.core, now)
                notifier.watchdog()
                store = now + STORE_S
            # After a stop of the machine there is nothing to catch up with.
            due = max(due + STEP_S, now - STEP_S)
            while (left := due - time.monotonic()) > GLANCE_S:
                time.sleep(GLANCE_S)
                service.glance()
            time.sleep(max(0.0, left))


if __name__ == "__main__":
    sys.exit(main())
