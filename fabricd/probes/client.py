"""Asyncio client of the prober's control socket ($RUN/prober/ctl.sock, SEQPACKET, JSON)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from fabricd.probes.records import MtuRow
from fabricd.probes.wire_id import host_id as host_id

_LARGEST = 64 * 1024
_NOTICE = b"!"


class ProberError(Exception):
    """The prober refused a request, or is not there (``ProberGoneError``)."""


class ProberGoneError(ProberError):
    """No prober listens, or it closed the connection."""


@dataclass(frozen=True, slots=True)
class ProbeLink:
    """One link of a configuration."""

    index: int
    netdev: str
    address: str
    port: int = 9200
    hw_stamps: bool = False
    """Use the NIC's hardware stamps if it offers them for all packets; switched on if need be."""
    rail: int | None = None
    """For what peers are told of our paths; None: nothing is told."""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """One path of a configuration; ``address`` is of the same family as the link's."""

    index: int
    link: int
    address: str
    port: int
    host_id: int
    """``host_id(name)`` of the peer; 0: not checked."""
    clock: bool = False
    """Send trains of three at ``clock_train_hz`` on it."""
    extra: bool = False
    """Probed beside the link's round of peers, not in a slot of it: across rails."""
    peer_rail: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeRdma:
    """A verbs port beside a link: RDMA probes on all of the link's paths."""

    link: int
    """Index of the link."""
    device: str
    port: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What ``configure`` replaces as a whole. Indices are 0..n-1, in order or not.

    Both ends of a path must configure it: a packet from an address that is no path's is refused.
    """

    host_id: int
    links: Sequence[ProbeLink]
    paths: Sequence[ProbePath]
    link_interval_us: int = 10_000
    misses: int = 3
    clock_train_hz: int = 100
    dscp: int = 0
    synchronized: bool = True
    """Send by a grid of fabric time, and judge by it, where there is one."""
    rdma: Sequence[ProbeRdma] = ()
    """RDMA link i has the index ``len(links) + i``; its paths follow all others, link by link and
    within a link in the order of ``paths``."""

    def rdma_paths(self) -> list[int]:
        """Of each RDMA path: the index of the path beside which it is probed."""
        return rdma_paths([r.link for r in self.rdma], [p.link for p in self.paths])

    def document(self) -> dict[str, Any]:
        """As the prober takes it: what is not known is left out."""
        document = asdict(self)
        for item in (*document["links"], *document["paths"]):
            for key in ("rail", "peer_rail"):
                if key in item and item[key] is None:
                    del item[key]
        return document


def rdma_paths(rdma_links: Sequence[int], path_links: Sequence[int]) -> list[int]:
    """The order in which the prober numbers RDMA paths (add_rdma_link of prober/src/core).

    Args:
        rdma_links: the link beside which each RDMA link stands.
        path_links: the link of each UDP path.

    Returns:
        For each RDMA path the index of the UDP path beside it.
    """
    return [i for link in rdma_links for i, other in enumerate(path_links) if other == link]


class ProberClient:
    """One connection. Requests are answered in order; notices are collected for ``wait``."""

    def __init__(self, sock: socket.socket, noticed: Callable[[], None] | None = None) -> None:
        """Use `connect`.

        Args:
            sock: connected, non-blocking, SEQPACKET.
            noticed: called when new events are in the ring, instead of `wait` returning: two turns
                of the loop sooner, of a decision that is worth milliseconds.
        """
        self._noticed = noticed
        self._sock = sock
        self._replies: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        """None: the prober is gone."""
        self._notified = asyncio.Event()
        self._gone = False
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def connect(cls, path: Path, noticed: Callable[[], None] | None = None) -> Self:
        """Connect to the socket; raises ProberGoneError. ``noticed``: as for the constructor."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        # A configuration of 1,024 paths is about 130 KB, in one packet.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            await asyncio.get_running_loop().sock_connect(sock, str(path))
        except OSError as error:
            sock.close()
            raise ProberGoneError(f"{path}: {error.strerror}") from error
        return cls(sock, noticed)

    async def configure(self, config: ProbeConfig) -> int:
        """Replace the configuration; returns its epoch. Raises ProberError with the reason."""
        reply = await self.request({"op": "configure", **config.document()})
        return int(reply["config"])

    async def views(self) -> list[tuple[int, int, int]]:
        """What the peers told lately, as `fabricd.detect.neighbours` takes it.

        Raises:
            ProberError: an older prober does not know the request.
        """
        out: list[tuple[int, int, int]] = []
        for _ in range(64):  # pages of a thousand; the prober keeps 16,384
            reply = await self.request({"op": "views", "skip": len(out)})
            page = reply.get("views")
            if not isinstance(page, list):
                raise ProberError("views: not a list")
            try:
                out += [(int(reporter), int(packed), int(at)) for reporter, packed, at in page]
            except (TypeError, ValueError) as error:
                raise ProberError("views: not (reporter, report, time)") from error
            if not page or reply.get("more") is not True:
                break
        return out

    async def mtu(self) -> list[MtuRow]:
        """The large packets of all paths, by index.

        Raises:
            ProberError: an older prober does not know the request.
        """
        out: list[MtuRow] = []
        for _ in range(8):  # pages of 400; there are at most 1,024 paths
            reply = await self.request({"op": "mtu", "skip": len(out)})
            page = reply.get("paths")
            if not isinstance(page, list):
                raise ProberError("mtu: not a list")
            try:
                out += [
                    MtuRow(index, *(int(value) for value in values))
                    for index, values in enumerate(page, len(out))
                ]
            except (TypeError, ValueError) as error:
                raise ProberError("mtu: not six numbers") from error
            if not page or reply.get("more") is not True:
                break
        return out

    async def status(self) -> dict[str, Any]:
        """Version, incarnation, counters, scheduling policy."""
        return await self.request({"op": "status"})

    async def subscribe(self) -> None:
        """From now on ``wait`` returns when new events are in the ring."""
        await self.request({"op": "subscribe"})

    async def rekey(self, keys: str | None = None) -> None:
        """Have the key file read again, or hand over the text of one.

        Raises:
            ProberError: with the reason; the old keys stay.
        """
        await self.request({"op": "rekey"} | ({} if keys is None else {"keys": keys}))

    async def request(self, request: dict[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
        """One request and its answer; raises ProberError or ProberGoneError."""
        async with self._lock:
            self._check()
            loop = asyncio.get_running_loop()
            try:
                await loop.sock_sendall(self._sock, json.dumps(request).encode())
                async with asyncio.timeout(timeout_s):
                    reply = await self._replies.get()
            except TimeoutError as error:
                # A late answer would be taken for the next request's.
                await self.close()
                raise ProberGoneError(f"prober: no answer in {timeout_s} s") from error
            except OSError as error:
                raise ProberGoneError(f"prober: {error.strerror}") from error
            if reply is None:
                raise ProberGoneError("prober: connection closed")
        if reply.get("ok") is not True:
            raise ProberError(str(reply.get("error", "no reason given")))
        return reply

    async def wait(self, timeout_s: float) -> bool:
        """True when notified since the last call, False after ``timeout_s``.

        Raises:
            ProberGoneError: the prober closed the connection.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._notified.wait()
        self._check()
        notified = self._notified.is_set()
        self._notified.clear()
        return notified

    def nudge(self) -> None:
        """Have `wait` return now."""
        self._notified.set()

    async def close(self) -> None:
        """Close the connection; idempotent."""
        self._lost()
        self._sock.close()

    def _check(self) -> None:
        if self._gone:
            raise ProberGoneError("prober: connection closed")

    def _readable(self) -> None:
        """Take all there is: of many notices one is enough."""
        noticed = False
        try:
            while data := self._sock.recv(_LARGEST):
                if data == _NOTICE:
                    noticed = True
                elif isinstance(reply := json.loads(data), dict):
                    self._replies.put_nowait(reply)
            self._lost()
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._lost()
        if noticed and self._noticed is not None:
            self._noticed()
        elif noticed:
            self._notified.set()

    def _lost(self) -> None:
        """There is no prober any more; whoever waits for it is waiting for nothing."""
        if self._gone:
            return
        self._gone = True
        self._loop.remove_reader(self._sock)
        self._notified.set()
        self._replies.put_nowait(None)
