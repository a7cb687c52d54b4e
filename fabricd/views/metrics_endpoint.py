"""The daemon's metrics endpoint: the socket that it serves, and what is reported without one."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import structlog

from fabricd.views import report
from fabricd.views.snapshot_cache import SnapshotCache
from telemetry.events import EventKind
from telemetry.metrics_server import UNIT, EndpointState, MetricsServer

if TYPE_CHECKING:
    from fabricd.runtime.host import Host

SOCKET_NAME = "metrics"
"""FileDescriptorName of fabricd-metrics.socket."""


def start(host: Host, listen: str, passed: dict[str, socket.socket]) -> MetricsServer | None:
    """Serve the host's metrics; None: there is no endpoint. Never raises for a port that is taken.

    Args:
        host: whose; its ``endpoint`` is kept up to date.
        listen: ``[metrics] listen``, valid.
        passed: systemd's sockets, by name; one that listens elsewhere is not served.
    """
    inherited = passed.pop(SOCKET_NAME, None)
    if not listen:
        if inherited is not None:
            structlog.get_logger().warning(f"{UNIT} is not served: [metrics] listen is empty")
            inherited.close()
        return None
    loop = asyncio.get_running_loop()

    def told(state: EndpointState) -> None:
        try:
            loop.call_soon_threadsafe(_changed, host, state)
        except RuntimeError:
            return  # The loop is closed: the daemon ends.

    server = MetricsServer(
        listen,
        SnapshotCache(lambda: report.snapshot(host), loop),
        cycle_age_s=lambda: (
            (time.monotonic_ns() - host.last_cycle_ns) / 1e9 if host.last_cycle_ns else None
        ),
        inherited=inherited,
        told=told,
    )
    host.endpoint = server.state
    host.endpoint_refused = lambda: server.refused
    server.start()
    return server


def _changed(host: Host, state: EndpointState) -> None:
    before, host.endpoint = host.endpoint, state
    if state.bound:
        if before.failures:
            host.record(EventKind.DAEMON, "metrics endpoint is bound", listen=state.listen)
    elif state.reason != before.reason:
        host.record(
            EventKind.DAEMON, "metrics endpoint is not bound", listen=state.listen,
            problem=state.reason,
        )  # fmt: skip
