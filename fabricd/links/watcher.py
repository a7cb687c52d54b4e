"""Watches rtnetlink. A hint only: the kernel coalesces link events to about one a second.

It gives what the counters do not: administrative state, addresses, devices that come, go or get
another index; and, while there is no prober, the carrier counts too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from pyroute2.iproute.linux import AsyncIPRoute
from pyroute2.netlink.rtnl import (
    RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV6_IFADDR,
    RTMGRP_LINK,
)

from fabricd.links.inventory import Inventory

_GROUPS = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR
_RETRY_S = 1.0
_LOAD_S = 5.0


class LinkWatcher:
    """Keeps an `Inventory` current and says when a device changed.

    Attributes:
        refused: messages that made no sense.
        changed: told the names of the devices that changed.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.refused = 0
        self.changed: Callable[[set[str]], None] = lambda _: None
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async with AsyncIPRoute() as route:
                    await route.bind(groups=_GROUPS)
                    await self._resync(route)
                    while True:
                        async for message in route.get():
                            self._take(message)
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

    async def _resync(self, route: AsyncIPRoute) -> None:
        links = [message async for message in await route.get_links()]
        addresses = [message async for message in await route.get_addr()]
        known = set(self.inventory.devices)
        self.inventory.clear()
        names = {self._apply(message) for message in (*links, *addresses)}
        self.inventory.loaded = True
        self.changed((names | known) - {""})

    def _take(self, message: object) -> None:
        if name := self._apply(message):
            self.changed({name})

    def _apply(self, message: object) -> str:
        try:
            return self.inventory.take(message)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            self.refused += 1
            return ""
