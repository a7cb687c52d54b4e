"""Watches rtnetlink. A hint only: the kernel coalesces link events to about one a second.

It gives what the counters do not: administrative state, addresses, devices that come, go or get
another index; and, while there is no prober, the carrier counts too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog
from pyroute2.iproute.linux import AsyncIPRoute
from pyroute2.netlink.rtnl import (
    RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV6_IFADDR,
    RTMGRP_LINK,
)

from fabricd.links import rtnl
from fabricd.links.inventory import Inventory
from telemetry.counters.types import CounterError

_GROUPS = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR
_RETRY_S = 1.0
_LOAD_S = 5.0
_BUFFER = 1 << 20
_DATAGRAM = 1 << 16
_BATCH = 64
"""Datagrams taken before anybody is told: a storm is one piece of news."""


class LinkWatcher:
    """Keeps an `Inventory` current and says when a device changed.

    Attributes:
        refused: messages that made no sense.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.refused = 0
        self._log = structlog.get_logger()

    async def run(self, changed: Callable[[set[str]], None]) -> None:
        """Watch until cancelled; ``changed`` is told the names of the devices that changed."""
        while True:
            try:
                with _listen() as news:
                    async with AsyncIPRoute() as route:
                        changed(await self._resync(route))
                    while True:
                        if names := await self._hear(news):
                            changed(names)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # ENOBUFS is the usual one: messages were lost.
                self._log.warning("netlink lost", error=repr(error))
                await asyncio.sleep(_RETRY_S)

    async def load(self) -> None:
        """Ask for everything once, before `run`, which tries again what fails here."""
        try:
            async with asyncio.timeout(_LOAD_S), AsyncIPRoute() as route:
                await self._resync(route)
        except Exception as error:
            self._log.warning("netlink not read yet", error=repr(error))

    async def _resync(self, route: AsyncIPRoute) -> set[str]:
        """Read all anew; returns the names of all devices that are known or were."""
        links = [message async for message in await route.get_links()]
        addresses = [message async for message in await route.get_addr()]
        known = set(self.inventory.devices)
        self.inventory.clear()
        names = {self._apply(message) for message in (*links, *addresses)}
        self.inventory.loaded = True
        return (names | known) - {""}

    async def _hear(self, news: socket.socket) -> set[str]:
        """Wait for messages; returns the names of the devices that changed."""
        names = self._take(await asyncio.get_running_loop().sock_recv(news, _DATAGRAM))
        for _ in range(_BATCH):
            try:
                names |= self._take(news.recv(_DATAGRAM))
            except BlockingIOError:
                break
        return names

    def _take(self, data: bytes) -> set[str]:
        try:
            found = rtnl.parse(data)
        except (CounterError, ValueError):
            self.refused += 1
            return set()
        return {self._apply(message) for message in found} - {""}

    def _apply(self, message: object) -> str:
        try:
            return self.inventory.take(message)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            self.refused += 1
            return ""


def _listen() -> socket.socket:
    news = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        socket.NETLINK_ROUTE,
    )  # fmt: skip
    news.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    news.bind((0, _GROUPS))
    return news
