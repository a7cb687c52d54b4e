"""The live engine: retained orders to hosts over the broker."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import structlog

from compute.engines.base import Decided
from telemetry.broker.interface import NotConnectedError
from telemetry.messages.documents import ComputeOrder
from telemetry.messages.envelope import BadMessageError

IN_FLIGHT = 16
"""Below what brokers allow: mosquitto 20 of one client."""


class OrderLink(Protocol):
    """The connection to the broker.

    ``complete``: messages may be sent. ``ordered``: host → the order that the broker holds.
    """

    complete: bool
    ordered: dict[str, ComputeOrder]

    async def publish_order(self, host: str, order: ComputeOrder) -> None:
        """Retain it. Raises ``NotConnectedError`` and ``BadMessageError``."""


def acts(order: ComputeOrder, before: ComputeOrder) -> bool:
    """Whether ``order`` does something that ``before`` did not: a fence, a generation, a kill."""
    if {fence.id for fence in order.fences} - {fence.id for fence in before.fences}:
        return True
    for job, new in order.jobs.items():
        old = before.jobs.get(job, {})
        if _number(new) > _number(old) or set(new.get("kill", ())) - set(old.get("kill", ())):
            return True
    return False


def _number(order: dict[str, Any]) -> int:
    generation = order.get("generation")
    return int(generation["number"]) if generation else 0


class LiveEngine:
    """Keeps the broker's retained orders as wanted.

    Attributes:
        published: orders that the broker has acknowledged.
        wanted: host → its newest order.
    """

    name = "live"

    def __init__(self, link: OrderLink) -> None:
        self.published = 0
        self.wanted: dict[str, ComputeOrder] = {}
        self._link = link
        self._paused = False
        self._dirty: dict[str, None] = {}
        self._in_flight: set[str] = set()
        self._wake = asyncio.Event()
        self._log = structlog.get_logger()

    def apply(self, decided: Decided) -> None:
        """Publish these orders soon."""
        self.wanted.update(decided.orders)
        self._dirty.update(dict.fromkeys(decided.orders))
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """While paused no order leaves that acts; one that only tells or withdraws does."""
        self._paused = paused
        self._wake.set()

    def reconcile(self, *, withdraw: bool) -> None:
        """Publish what the broker does not hold, or holds otherwise.

        ``withdraw``: also replace orders that it holds and that are not wanted, of an earlier life
        of this fabric-compute, by empty ones.
        """
        if withdraw:
            for host in self._link.ordered.keys() - self.wanted.keys():
                self.wanted[host] = ComputeOrder()
        self._dirty.update(dict.fromkeys(self.wanted))
        self._wake.set()

    def forget(self) -> None:
        """The connection is lost: what waits may be wrong when it is back, and is decided anew."""
        self._dirty.clear()

    async def run(self) -> None:
        """Publish until cancelled."""
        tasks: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._wake.set()

        try:
            while True:
                self._wake.clear()
                while len(tasks) < IN_FLIGHT and (host := self._next()) is not None:
                    task = asyncio.create_task(self._publish(host))
                    tasks.add(task)
                    task.add_done_callback(ended)
                await self._wake.wait()
        finally:
            for task in tasks:
                task.cancel()

    def _next(self) -> str | None:
        if not self._link.complete:
            return None
        host = next((host for host in self._dirty if self._may_leave(host)), None)
        if host is not None:
            del self._dirty[host]
        return host

    def _may_leave(self, host: str) -> bool:
        if host in self._in_flight:
            return False
        held = self._link.ordered.get(host, ComputeOrder())
        return not (self._paused and acts(self.wanted[host], held))

    async def _publish(self, host: str) -> None:
        order = self.wanted[host]
        if self._link.ordered.get(host, ComputeOrder()) == order:
            return
        self._in_flight.add(host)
        try:
            await self._link.publish_order(host, order)
            self.published += 1
        except NotConnectedError:
            return  # After the next connection `reconcile` says what is missing.
        except BadMessageError as error:
            self._log.error("an order is too large", host=host, error=str(error))
        finally:
            self._in_flight.discard(host)
