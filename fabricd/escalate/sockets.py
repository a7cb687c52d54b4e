"""Ends the TCP connections of a job to a fenced host, so that nobody waits for a dead peer.

A blocked receive returns with an error at once (SOCK_DESTROY, sock_diag(7)), instead of after the
kernel's own time-out of many minutes. It takes CAP_NET_ADMIN and a kernel with
CONFIG_INET_DIAG_DESTROY; where either is missing, that is logged once and the job's own processes
close their connections themselves.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import structlog

from fabricd.config.tables import PeerTable
from fabricd.escalate.fences import FenceError
from telemetry.counters.nlsocket import Netlink
from telemetry.counters.polled import SourceOff
from telemetry.counters.types import CounterError
from telemetry.messages.documents import Fence

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
_REQUEST = struct.Struct("=BBBBI")
_ID = struct.Struct("!HH16s16s")
_ID_BYTES = 48
"""Ports, addresses, interface and cookie of a socket (linux/inet_diag.h, inet_diag_sockid)."""
_MESSAGE = struct.Struct("=4s48sIIIII")
_CONNECTED = 0xFFF & ~(1 << 6 | 1 << 7 | 1 << 10)
"""All states but TIME_WAIT, CLOSE and LISTEN."""
UNAVAILABLE = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True)
class Target:
    """Connections to end: of processes of user ``uid``, to any of ``addresses``."""

    addresses: frozenset[str]
    uid: int


@dataclass(frozen=True)
class TcpSocket:
    """One connected TCP socket of this network namespace. ``id`` is the kernel's."""

    family: int
    id: bytes
    remote: str
    uid: int


def parse_socket(payload: bytes) -> TcpSocket:
    """An ``inet_diag_msg``. Raises ``CounterError``."""
    if len(payload) < _MESSAGE.size:
        raise CounterError(f"sock_diag: message of {len(payload)} bytes")
    head, ident, _, _, _, uid, _ = _MESSAGE.unpack_from(payload)
    _, _, _, remote = _ID.unpack_from(ident)
    if head[0] == socket.AF_INET:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(remote[:4])
    else:
        address = ipaddress.IPv6Address(remote)
        address = address.ipv4_mapped or address
    return TcpSocket(head[0], ident, str(address), uid)


def matching(sockets: Iterable[TcpSocket], targets: Collection[Target]) -> Iterator[TcpSocket]:
    """The sockets that a target names."""
    for one in sockets:
        if any(one.uid == target.uid and one.remote in target.addresses for target in targets):
            yield one


def addresses_of(host: str, peers: Collection[PeerTable]) -> frozenset[str]:
    """The addresses of a host by which no other host can be meant.

    Two hosts may have one link-local address on different rails; a socket's peer is known by its
    address alone.
    """
    by_host = {peer.host: {str(one.address) for one in peer.addresses} for peer in peers}
    own = by_host.pop(host, set())
    return frozenset(own.difference(*by_host.values()))


class SocketKiller:
    """A `FenceApplier`."""

    name = "sockets"

    def __init__(self, target: Callable[[Fence], Target | None]) -> None:
        """Args: ``target``: what a fence concerns here; None: no connection of this host."""
        self.ended = 0
        """Connections ended since the start."""
        self._target = target
        self._unavailable = ""
        self._log = structlog.get_logger()

    async def apply(self, fences: Collection[Fence], new: Collection[Fence]) -> None:  # noqa: ARG002
        """End the connections that the new fences concern. Raises `FenceError`."""
        found = [target for fence in new if (target := self._target(fence)) is not None]
        if not found or self._unavailable:
            return
        try:
            self.ended += await asyncio.to_thread(destroy, found)
        except (OSError, CounterError, SourceOff) as error:
            if isinstance(error, SourceOff) or getattr(error, "errno", 0) in UNAVAILABLE:
                self._unavailable = str(error)
                self._log.warning("connections to fenced hosts are left to the jobs to end",
                                  reason=str(error))  # fmt: skip
                return
            raise FenceError(f"sock_diag: {error}") from error


def destroy(targets: Collection[Target]) -> int:
    """End all matching TCP connections of this network namespace; returns how many.

    Raises:
        OSError: the kernel refuses.
        SourceOff, CounterError: it has no sock_diag, or answers with something else.
    """
    link = Netlink(NETLINK_SOCK_DIAG)
    count = 0
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _CONNECTED)
            answers = link.ask(SOCK_DIAG_BY_FAMILY, request + bytes(_ID_BYTES), dump=True)
            sockets = [parse_socket(bytes(message.payload)) for message in answers]
            for one in matching(sockets, targets):
                request = _REQUEST.pack(one.family, socket.IPPROTO_TCP, 0, 0, _CONNECTED)
                try:
                    link.ask(SOCK_DESTROY, request + one.id, ack=True)
                except FileNotFoundError:
                    continue  # It has ended meanwhile.
                count += 1
    finally:
        link.close()
    return count
