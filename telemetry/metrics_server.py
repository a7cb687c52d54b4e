"""The metrics endpoint: ``/metrics``, ``/healthz`` and ``/readyz`` in one thread of its own.

The thread has its own event loop, so ``/healthz`` answers while the daemon's loop does not. A port
that is taken never stops the daemon: the endpoint tries again, with back-off, until it has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from telemetry.http_server import HttpServer, Reply, Request
from telemetry.listen import is_at, parse_listen
from telemetry.metrics import OPENMETRICS, render
from telemetry.snapshot import HostSnapshot

RETRY_S = (1.0, 30.0)
"""Pause after the first failed bind, and the longest."""
UNIT = "fabricd-metrics.socket"
CYCLE_S = 10.0
"""A daemon whose last cycle is older is not alive: as the unit's WatchdogSec."""


@dataclass(frozen=True, slots=True)
class EndpointState:
    """Whether the endpoint can be scraped."""

    listen: str = ""
    """The address as configured; empty: there is no endpoint."""
    bound: bool = False
    reason: str = ""
    """Why it is not bound."""
    failures: int = 0
    """Failed binds since the start."""
    inherited: bool = False
    """The socket is the service manager's: it outlives the daemon."""

    def __str__(self) -> str:
        if not self.listen:
            return "off"
        if self.bound:
            return f"on {self.listen}"
        return f"NOT BOUND to {self.listen}: {self.reason or 'not tried yet'}"


def bind(listen: str) -> socket.socket:
    """A listening socket.

    Raises:
        ValueError: as `parse_listen`.
        OSError: the address cannot be bound.
    """
    address, port = parse_listen(listen)
    family, _, _, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        # Now: until it listens another user may bind the same address.
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def not_ready(snapshot: HostSnapshot) -> list[str]:
    """Why the daemon does not do its whole work yet; empty: it does."""
    reasons = []
    if snapshot.daemon.last_cycle_wall_s is None:
        reasons.append("nothing was evaluated yet")
    if not snapshot.prober.up:
        reasons.append("the prober is not up")
    if not snapshot.daemon.config_ok:
        reasons.append("the last reload of the configuration was refused")
    return reasons


class MetricsServer:
    """Serves in a thread until closed.

    Attributes:
        state: as of now; replaced as a whole, so any thread may read it.
    """

    def __init__(
        self,
        listen: str,
        source: Callable[[], Awaitable[HostSnapshot]],
        *,
        cycle_age_s: Callable[[], float | None] = lambda: 0.0,
        inherited: socket.socket | None = None,
        told: Callable[[EndpointState], None] = lambda _: None,
        retry_s: tuple[float, float] = RETRY_S,
    ) -> None:
        """Nothing is bound before `start`.

        Args:
            listen: as `parse_listen`.
            source: gives the current snapshot; awaited on this endpoint's loop.
            cycle_age_s: seconds since the daemon's last full cycle, None before the first; called
                from this endpoint's thread.
            inherited: a listening socket of the service manager, served instead of binding
                ``listen`` where it is there.
            told: called in this endpoint's thread when the state changes.
            retry_s: pause after the first failed bind, and the longest.

        Raises:
            ValueError: ``listen`` is malformed.
        """
        parse_listen(listen)
        self.state = EndpointState(listen, inherited=inherited is not None)
        self.port = 0
        """That is bound; 0: none is."""
        self._source = source
        self._cycle_age_s = cycle_age_s
        self._inherited = inherited
        self._held = ""
        """Where the service manager's socket listens: elsewhere, but on the port of ``listen``."""
        self._told = told
        self._retry_s = retry_s
        self._rendered: tuple[HostSnapshot | None, dict[tuple[str, bool], Reply]] = (None, {})
        self._server = HttpServer(
            {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        )
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._tried = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    @property
    def refused(self) -> int:
        """Connections and requests refused since the start."""
        return sum(self._server.refused.values())

    def start(self, wait_s: float = 0.0) -> None:
        """Begin to serve.

        Args:
            wait_s: how long to wait for the first attempt to bind.
        """
        try:
            self._thread.start()
        except RuntimeError as error:  # The limit of tasks is reached.
            self._tell(replace(self.state, reason=str(error)))
            return
        self._tried.wait(wait_s)

    def close(self) -> None:
        """Stop serving and free the port; one that is inherited stays the service manager's."""
        if self._thread.ident is None:
            self._loop.close()
            return
        with contextlib.suppress(RuntimeError):  # It has ended.
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            # It is not worth the daemon's life; the state says that nobody can scrape.
            self._tell(replace(self.state, bound=False, reason=repr(error)))
        finally:
            self._tried.set()
            self._loop.close()

    async def _serve(self) -> None:
        pause = self._retry_s[0]
        while not self._stop.is_set():
            try:
                sock = self._socket()
                await self._server.start(sock)
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno == errno.EADDRINUSE and self._held:
                    reason += (
                        f": {UNIT} has {self._held}; tell it the same address "
                        "(docs/reference/metrics.md)"
                    )
                failures = self.state.failures + 1
                self._tell(replace(self.state, reason=reason, failures=failures))
                if not isinstance(error, socket.gaierror):  # The name may be known later.
                    self._inherited = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stop.wait()
                pause = min(2 * pause, self._retry_s[1])
                continue
            self.port = int(sock.getsockname()[1])
            self._tell(replace(self.state, bound=True, reason=""))
            await self._stop.wait()
        await self._server.stop()

    def _socket(self) -> socket.socket:
        """The service manager's, or one of our own.

        Raises:
            OSError: the address cannot be bound, or the name cannot be resolved.
        """
        listen, sock = self.state.listen, self._inherited
        if sock is not None:
            if is_at(sock, listen):
                return sock
            address, port = sock.getsockname()[:2]
            where = f"[{address}]:{port}" if sock.family == socket.AF_INET6 else f"{address}:{port}"
            self._held = where if port == parse_listen(listen)[1] else ""
            self._inherited = None
            sock.close()
            self.state = replace(self.state, inherited=False)
            structlog.get_logger().warning(
                f"{UNIT} is not served: it listens elsewhere than [metrics] listen",
                socket=where, listen=listen,
            )  # fmt: skip
        return bind(listen)

    def _tell(self, state: EndpointState) -> None:
        self.state = state
        self._told(state)
        self._tried.set()

    async def _metrics(self, request: Request) -> Reply:
        """Rendered once a snapshot, however many ask."""
        snapshot = await self._source()
        if snapshot is not self._rendered[0]:
            self._rendered = (snapshot, {})
        accept = OPENMETRICS if OPENMETRICS in request.headers.get("accept", "") else ""
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        kind = (accept, zipped)
        if (reply := self._rendered[1].get(kind)) is None:
            body, content_type = render(snapshot, accept)
            reply = Reply(200, body, content_type)
            if zipped:
                headers = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
                reply = Reply(200, gzip.compress(body, 1), content_type, headers)
            self._rendered[1][kind] = reply
        return reply

    async def _healthz(self, _request: Request) -> Reply:
        """200 while the daemon's loop cycles."""
        age = self._cycle_age_s()
        if age is None:
            return Reply(503, b"no cycle yet\n")
        if age > CYCLE_S:
            return Reply(503, f"no cycle for {age:.1f} s\n".encode())
        return Reply(200, b"ok\n")

    async def _readyz(self, request: Request) -> Reply:
        """200 while the daemon is alive and does its whole work."""
        health = await self._healthz(request)
        reasons = [] if health.status == 200 else [health.body.decode().strip()]
        reasons += not_ready(await self._source())
        if reasons:
            return Reply(503, "".join(f"{reason}\n" for reason in reasons).encode())
        return Reply(200, b"ready\n")
