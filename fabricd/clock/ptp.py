"""The PTP edge: sockets for `clocksync.ptp`, on hosts with ``[clock] ptp_masters``.

UDP ports 319 and 320 (IEEE 1588-2019 annexes C and D), with the kernel's software stamps
(Documentation/networking/timestamping.rst); that of a Delay_Req comes by the error queue. It runs
in the clock service's steps, ten a second: the kernel stamps packets when they come and go, so
nothing is lost by reading them later, and there is less than one exchange a step. Without a thread
there is nothing to lock.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from clocksync.ptp.client import Client, MasterTime
from clocksync.ptp.messages import DelayReq, Message, PtpError, Sync, decode, encode
from fabricd.clock.clocks import Clocks
from fabricd.clock.wall import WallCrossing

EVENT_PORT, GENERAL_PORT = 319, 320
_SO_TIMESTAMPING: Final = 37
_TX_SOFTWARE, _RX_SOFTWARE, _SOFTWARE = 1 << 1, 1 << 3, 1 << 4
_STAMPS: Final = struct.Struct("@qqqqqq")
_ANCILLARY: Final = 1024
_MOST_BYTES: Final = 2048
MOST_READ: Final = 512
"""Datagrams of a socket in a step; of more the kernel drops."""
DELAY_REQ_BYTES: Final = 44
RETRY_S: Final = 5.0
READINGS: Final = 5
"""Tries for a reading of both clocks; the first that was not interrupted counts."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Came(NamedTuple):
    sender: str
    data: bytes
    wall_ns: int | None
    """When it came or left, by the wall clock."""


class PtpEdge:
    """A host's. `tick` in each step of the clock service; not for two threads at once."""

    def __init__(
        self,
        host: int,
        masters: Sequence[Address],
        *,
        domain: int = 0,
        interface: str | None = None,
    ) -> None:
        """Nothing is opened yet: the network may not be there.

        Args:
            host: id on the wire; the clockIdentity is made from it, as one that is locally
                administered (7.5.2.2).
            masters: their addresses.
            domain: domainNumber.
            interface: whose packets alone are sent and heard; IPv6 link-local masters need it.
        """
        self.client = Client(b"\x02fab" + host.to_bytes(4, "big"), len(masters), domain)
        self.addresses = [str(address) for address in masters]
        self.unknown = 0
        """Datagrams of senders that are no masters."""
        self.unstamped = 0
        """Syncs and Delay_Reqs without a stamp that could be converted."""
        self.crossing = WallCrossing()
        self._index = {str(address): number for number, address in enumerate(masters)}
        self._families = {
            number: socket.AF_INET if address.version == 4 else socket.AF_INET6
            for number, address in enumerate(masters)
        }
        self._interface = interface
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        self._retry_s = 0.0
        self._trouble: dict[str, str] = {}
        """By what has it: a port, or a master."""
        self._log = structlog.get_logger()

    @property
    def why(self) -> str:
        """What keeps it from speaking, or "" when nothing does."""
        return "; ".join(f"{what}: {why}" for what, why in self._trouble.items())

    def tick(self, clocks: Clocks) -> MasterTime | None:
        """Read, answer; the best master's time as of now."""
        if not self._sockets and time.monotonic() >= self._retry_s:
            self._open()
        came = [*self._read()]
        left = [*self._left()]
        self._look()
        now = clocks.now()
        for each in left:
            self._sent(each, clocks)
        for each in came:
            index = self._index.get(each.sender)
            if index is None:
                self.unknown += 1
                continue
            stamp = self._own(each.wall_ns, clocks)
            self.client.receive(index, each.data, stamp, now)
        self._send(self.client.step(now))
        self._say("masters", self.client.contradictions(now))
        return self.client.time(now)

    def forget(self) -> None:
        """This host's clock is another."""
        self.client.reset()
        self.crossing = WallCrossing()

    def refused(self) -> Counter[str]:
        """Datagrams that were of no use, by reason."""
        total = self.client.refused()
        total["unknown sender"] += self.unknown
        return total

    def close(self) -> None:
        """Give back what was granted, and the ports. Idempotent."""
        if self._sockets:
            self._send(self.client.cancel_unicast_transmission())
        self._shut()

    # -- sockets ------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            for family in set(self._families.values()):
                for port in (EVENT_PORT, GENERAL_PORT):
                    self._sockets[family, port] = self._bound(family, port)
        except OSError as error:
            self._shut()
            self._retry_s = time.monotonic() + RETRY_S
            self._say("ports", f"{error.strerror}")
            return
        self._say("ports", "")
        self._log.info("PTP", masters=self.addresses)

    def _bound(self, family: int, port: int) -> socket.socket:
        made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if self._interface is not None:
                name = self._interface.encode() + b"\0"
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == EVENT_PORT:
                flags = _TX_SOFTWARE | _RX_SOFTWARE | _SOFTWARE
                made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, flags)
            made.bind(("" if family == socket.AF_INET else "::", port))
        except OSError as error:
            made.close()
            what = f"port {port}{f' of {self._interface}' if self._interface else ''}"
            raise OSError(error.errno, f"{what}: {error.strerror}") from error
        return made

    def _shut(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    def _say(self, what: str, why: str) -> None:
        """Something is in trouble, or is no more; said when that is news."""
        if why and self._trouble.get(what) != why:
            self._log.warning("PTP", of=what, reason=why)
            self._trouble[what] = why
        elif not why and self._trouble.pop(what, ""):
            self._log.info("PTP", of=what, reason="well again")

    # -- packets ------------------------------------------------------------------------------

    def _read(self) -> Iterator[_Came]:
        for each in self._sockets.values():
            for _ in range(MOST_READ):
                try:
                    data, ancillary, _, sender = each.recvmsg(_MOST_BYTES, _ANCILLARY)
                except BlockingIOError:
                    break
                except OSError:
                    continue  # of a packet sent earlier; it is taken from the socket by this
                yield _Came(sender[0].partition("%")[0], data, _stamp(ancillary))

    def _left(self) -> Iterator[_Came]:
        """What left through the event ports: the packets themselves, with their stamps."""
        for (_, port), each in self._sockets.items():
            for _ in range(MOST_READ if port == EVENT_PORT else 0):
                try:
                    data, ancillary, _, _ = each.recvmsg(
                        _MOST_BYTES, _ANCILLARY, socket.MSG_ERRQUEUE
                    )
                except OSError:
                    break
                yield _Came("", data[-DELAY_REQ_BYTES:], _stamp(ancillary))

    def _sent(self, each: _Came, clocks: Clocks) -> None:
        try:
            message = decode(each.data)
        except PtpError:
            return
        stamp = self._own(each.wall_ns, clocks)
        if isinstance(message, DelayReq) and stamp is not None:
            self.client.sent(message.header.sequence, stamp)

    def _own(self, wall_ns: int | None, clocks: Clocks) -> int | None:
        raw = None if wall_ns is None else self.crossing.to_raw(wall_ns)
        if raw is None:
            self.unstamped += wall_ns is not None
            return None
        return int(clocks.own(np.array([raw], np.int64))[0])

    def _look(self) -> None:
        """Read both clocks; after the packets, so that their stamps lie between two readings."""
        for _ in range(READINGS):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            if self.crossing.add(before, wall, after):
                return

    def _send(self, messages: Sequence[tuple[int, Message]]) -> None:
        for index, message in messages:
            family = self._families[index]
            port = EVENT_PORT if isinstance(message, DelayReq | Sync) else GENERAL_PORT
            target: tuple[Any, ...] = (self.addresses[index], port)
            found = self._sockets.get((family, port))
            if found is None:
                continue
            if family == socket.AF_INET6 and self._interface is not None:
                with contextlib.suppress(OSError):
                    target = (*target, 0, socket.if_nametoindex(self._interface))
            try:
                found.sendto(encode(message), target)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENXIO):
                    self._shut()  # the interface has gone, and may come again as another
                    self._retry_s = time.monotonic() + RETRY_S
                self._say(self.addresses[index], f"{error.strerror}")
            else:
                self._say(self.addresses[index], "")


def _stamp(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The software stamp, by the wall clock."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING and len(data) >= _STAMPS.size:
            seconds, rest = _STAMPS.unpack_from(data)[:2]
            if seconds:
                return int(seconds) * 10**9 + int(rest)
    return None
