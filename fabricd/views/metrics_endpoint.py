"""The daemon's metrics endpoint: the socket that it serves, and what is reported without one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import structlog

from fabricd.runtime.evaluator import Evaluator
from fabricd.runtime.event_stream import EventStream
from fabricd.views.snapshot_cache import SnapshotCache
from telemetry.events import EventKind
from telemetry.metrics_server import UNIT, EndpointState, MetricsServer
from telemetry.snapshot import HostSnapshot

SOCKET_NAME = "metrics"
"""FileDescriptorName of fabricd-metrics.socket."""


class MetricsEndpoint:
    """One host's, or none. Attribute ``state``: as of now."""

    def __init__(self, events: EventStream, evaluator: Evaluator) -> None:
        self.state = EndpointState()
        self._events, self._evaluator = events, evaluator
        self._server: MetricsServer | None = None

    @property
    def refused(self) -> int:
        """Connections and requests refused since the start."""
        return self._server.refused if self._server is not None else 0

    def start(
        self,
        listen: str,
        passed: dict[str, socket.socket],
        snapshot: Callable[[], HostSnapshot],
    ) -> None:
        """Serve the host's metrics. Never raises for a port that is taken.

        Args:
            listen: ``[metrics] listen``, valid; empty: there is no endpoint.
            passed: systemd's sockets, by name; one that listens elsewhere is not served.
            snapshot: called on the event loop for what is served.
        """
        inherited = passed.pop(SOCKET_NAME, None)
        if not listen:
            if inherited is not None:
                structlog.get_logger().warning(f"{UNIT} is not served: [metrics] listen is empty")
                inherited.close()
            return
        loop = asyncio.get_running_loop()

        def told(state: EndpointState) -> None:
            try:
                loop.call_soon_threadsafe(self._changed, state)
            except RuntimeError:
                return  # The loop is closed: the daemon ends.

        self._server = MetricsServer(
            listen,
            SnapshotCache(snapshot, loop),
            cycle_age_s=self._cycle_age_s,
            inherited=inherited,
            told=told,
        )
        self.state = self._server.state
        self._server.start()

    async def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    def _cycle_age_s(self) -> float | None:
        last = self._evaluator.last_cycle_ns
        return (time.monotonic_ns() - last) / 1e9 if last else None

    def _changed(self, state: EndpointState) -> None:
        before, self.state = self.state, state
        if state.bound:
            if before.failures:
                self._events.record(
                    EventKind.DAEMON, "metrics endpoint is bound", listen=state.listen
                )
        elif state.reason != before.reason:
            self._events.record(
                EventKind.DAEMON, "metrics endpoint is not bound", listen=state.listen,
                problem=state.reason,
            )  # fmt: skip
