"""``Cluster``: a whole lab as a context manager. What tests, the demo and the benchmarks use.

with Cluster("mine", hosts=2, rails=2) as cluster:
    cluster.start_daemons()
    with cluster.inject(Carrier("h0:rail1")):
        cluster.nodes[0].run(["ping", "-c1", "10.0.0.2"])
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from lab.faults.base import Fault, Site
from lab.faults.schedule import Play, Step
from lab.faults.truth import Row
from lab.lifecycle import registry
from lab.lifecycle.registry import LabError
from lab.network import build
from lab.network.route_restorer import RouteRestorer
from lab.node import Node, build_dir, prober_binary
from lab.observe.log_scan import scan_logs
from lab.services.perf import Binaries, Collective, Perf
from lab.topology import Topology, parse_rate
from telemetry.service import durable


class Cluster:
    """A lab owned by this process. All is removed on exit, also after Ctrl-C and SIGTERM.

    After SIGKILL of this process the next start of any lab removes what is left.
    """

    def __init__(
        self,
        name: str = "lab",
        *,
        hosts: int = 4,
        rails: int = 4,
        rate: str | int = "500mbit",
        rail_only: bool = False,
        topology: Topology | None = None,
    ) -> None:
        self.topology = topology or Topology(
            name=name,
            hosts=hosts,
            rails=rails,
            spines=0 if rail_only else 2,
            rate_bps=parse_rate(rate) if isinstance(rate, str) else rate,
        )
        self.dir = registry.LabDir(self.topology.name)
        self.site = Site(self.topology, self.dir)
        self.nodes = [Node(self.site, i) for i in range(self.topology.hosts)]
        self._active: list[Fault] = []
        self._plays: list[Play] = []
        self._closers: list[Callable[[], None]] = []
        self._old_handlers: dict[int, Any] = {}
        self._up = False
        self.expect_reports = False
        """Set by a test that provokes a traceback on purpose."""

    # Up and down

    def up(self) -> None:
        """Claim the name, remove stale labs, build.

        Raises:
            LabError: not root, or a living lab of that name.
        """
        if os.geteuid() != 0:
            raise LabError("a lab needs root: it makes network namespaces")
        info = registry.claim(self.topology)
        self._up = True
        try:
            build.build(self.topology)
            for node in self.nodes:
                node.make_dirs()
            durable.replace_text(self.dir.key, secrets.token_hex(32) + "\n", 0o600, sync=False)
            restorer = RouteRestorer(self.topology)
            restorer.start()
            self._closers.append(restorer.stop)
            replace(info, state="ready").save()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End plays, faults, services and processes; remove everything. Twice does no harm."""
        if not self._up:
            return
        self._up = False
        # Everything runs, whatever fails; done in the reverse of this order.
        with ExitStack() as stack:
            stack.callback(registry.release, self.topology.name)
            stack.callback(self._stop_services)
            for closer in self._closers:
                stack.callback(closer)
            for fault in self._active:
                stack.callback(fault.close)
                stack.callback(fault.end)
            for play in self._plays:
                stack.callback(play.stop)

    def _stop_services(self) -> None:
        threads = [threading.Thread(target=node.stop_services) for node in self.nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Cluster:
        self._catch_signals()
        try:
            self.up()
        except BaseException:
            self._restore_signals()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # A second Ctrl-C must not stop the clearing up, which takes a moment only.
            for number in self._old_handlers:
                signal.signal(number, signal.SIG_IGN)
            self.down()
        finally:
            self._restore_signals()

    def _catch_signals(self) -> None:
        # SIGINT raises KeyboardInterrupt already; these would end the process without __exit__.
        if threading.current_thread() is not threading.main_thread():
            return

        def leave(number: int, _frame: FrameType | None) -> None:
            raise SystemExit(128 + number)

        for number in (signal.SIGTERM, signal.SIGHUP):
            self._old_handlers[number] = signal.signal(number, leave)
        self._old_handlers[signal.SIGINT] = signal.getsignal(signal.SIGINT)

    def _restore_signals(self) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers.clear()

    # Services

    @property
    def binaries(self) -> Binaries:
        """Native parts of ``build/$FABRIC_BUILD``.

        Raises:
            LabError: one is not built.
        """
        base = build_dir()
        found = Binaries(
            prober=prober_binary(),
            plugin=base / "nccl_plugin" / "libnccl-net-fabric.so",
            perf=base / "nccl_plugin" / "fabric-perf",
        )
        for path in (found.prober, found.plugin, found.perf):
            if not path.exists():
                raise LabError(f"no {path}; build it: ./run build {base.name}")
        return found

    def start_daemons(
        self,
        *,
        restart: bool = True,
        mode: str = "steer",
        env: Mapping[str, str] | None = None,
        **overrides: Mapping[str, Any],
    ) -> None:
        """Prober and fabricd on every host; ``overrides`` are tables of fabricd.toml.

        ``env`` is for fabricd alone.
        """
        for node in self.nodes:
            node.start_prober(restart=restart)
        for node in self.nodes:
            node.start_daemon(restart=restart, mode=mode, env=env, **overrides)

    def start_perf(
        self,
        collective: Collective,
        *args: str,
        nodes: Sequence[Node] | None = None,
        env: Mapping[str, str] | None = None,
        name: str = "perf",
        plugin: Path | None = None,
        cores: Sequence[int] = (),
    ) -> Perf:
        """``fabric-perf`` with one rank per host; ``args`` are its further arguments.

        ``plugin`` and ``cores`` are those of `lab.services.perf.Perf`.

        Raises:
            LabError: something is not built.
        """
        perf = Perf(
            self, collective, args, nodes=nodes, env=env, name=name, plugin=plugin, cores=cores
        )
        self._closers.append(perf.kill)
        return perf

    # Faults

    @contextmanager
    def inject(self, fault: Fault, seconds: float | None = None) -> Iterator[Fault]:
        """The fault is in force inside the ``with`` block; with ``seconds`` it ends by then."""
        self.arm(fault)
        timer: threading.Timer | None = None
        try:
            fault.start()
            if seconds is not None:
                timer = threading.Timer(seconds, fault.end)
                timer.start()
            yield fault
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
            self.disarm(fault)

    def arm(self, fault: Fault) -> Fault:
        """Check the fault against this lab and prepare it; ``start`` and ``end`` are yours.

        Whatever still is in force when the lab goes down is ended then.
        """
        fault.arm(self.site)
        self._active.append(fault)
        return fault

    def disarm(self, fault: Fault) -> None:
        """End what was armed, and forget it."""
        fault.end()
        fault.close()
        self._active.remove(fault)

    def play(self, steps: Iterable[Step]) -> Play:
        """Inject a schedule from a thread of its own; ``wait`` on what is returned."""
        play = Play(self.site, steps)
        self._plays.append(play)
        play.start()
        return play

    def truth(self) -> list[Row]:
        """Ground truth so far."""
        return self.site.truth.rows()

    # Logs

    def sanitizer_reports(self) -> list[str]:
        """Lines of any log of this lab that a sanitizer or a Python traceback wrote."""
        return scan_logs(self.dir.root)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll every 10 ms.

    Raises:
        TimeoutError: ``condition`` stayed false.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s} s")
        time.sleep(0.01)
