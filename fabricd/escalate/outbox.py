"""Sends events to the broker so that each arrives: stored first, deleted when acknowledged.

An event keeps its id over restarts, so whoever receives it twice can tell. Storing is done in a
thread: a disk that stalls delays nothing else. `Outbox.depth` counts events on disk only. An event
that was accepted and is not on disk yet is *unstored*: ``kill -9`` of fabricd loses it. Whoever
promises something to others by an event waits for `Outbox.when_stored`.

An event that the broker takes in no size (`PacketTooLargeError`) is given up and counted: sent
again, it would end each connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from fabricd.escalate.outbox_store import Depth, OutboxStore, Waiting
from fabricd.process.blocking_call import BlockingCaller
from telemetry.broker.interface import NotConnectedError
from telemetry.broker.limits import PacketTooLargeError
from telemetry.timeline_schema import TimelineError

MOST_UNSTORED = 10_000
"""Events that wait for the disk. Beyond that new ones are dropped and counted."""
IN_FLIGHT = 8
RETRY_S = (0.2, 5.0)
CALL_S = 30.0
T = TypeVar("T")


class StoreThread:
    """The one thread that touches the file. One for the daemon's life: it cannot be ended."""

    def __init__(self) -> None:
        self._blocking = BlockingCaller("outbox", CALL_S)
        self._turn = asyncio.Lock()

    async def call(self, work: Callable[[], T]) -> T:
        """Do ``work`` there, however long it takes; raises what ``work`` raised.

        Raises:
            TimelineError: also when the system gives no thread.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def guarded() -> tuple[T | None, Exception | None]:
            try:
                return work(), None
            except Exception as error:  # The caller may still wait when it is late.
                return None, error

        def take(result: tuple[T | None, Exception | None]) -> None:
            if answer.done():
                return
            if result[1] is not None:
                answer.set_exception(result[1])
            else:
                answer.set_result(result[0])  # type: ignore[arg-type]  # None may be a T

        async with self._turn:
            # A cancelled caller gave up its turn, but the thread still does its work.
            await self._blocking.wait_idle()
            returned = await self._blocking.call(guarded, take) or answer.done()
            if not returned and not self._blocking.busy:
                raise TimelineError("no thread", retryable=True)
            return await answer


class Outbox:
    """``offer`` takes events, `run` sends them while there is a connection."""

    def __init__(
        self,
        store: OutboxStore,
        thread: StoreThread,
        publish: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Args: ``publish`` returns when the broker has it.

        It raises `NotConnectedError`, or `PacketTooLargeError`.
        """
        self._store, self._thread, self._publish = store, thread, publish
        self._unstored: deque[Waiting] = deque()
        self._dropped = 0
        self._offered = self._settled = 0
        """Events that were accepted, and how many of these are on disk, since the start."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._wake = asyncio.Event()
        self._stored = asyncio.Event()
        self._connected = asyncio.Event()
        self._log = structlog.get_logger()

    @property
    def depth(self) -> Depth:
        """Events on disk that the broker has not acknowledged, and all that were dropped."""
        stored = self._store.depth
        return replace(stored, dropped=stored.dropped + self._dropped)

    @property
    def unstored(self) -> int:
        """Events that were accepted and are not on disk yet."""
        return len(self._unstored)

    def offer(self, message: Waiting) -> None:
        """Send an event, some time."""
        if len(self._unstored) >= MOST_UNSTORED:
            self._dropped += 1
            return
        self._unstored.append(message)
        self._offered += 1
        self._wake.set()

    def when_stored(self, call: Callable[[], None]) -> None:
        """Call back once all events that were offered so far are on disk; at once if they are."""
        if self._settled == self._offered:
            call()
        else:
            self._waiting.append((self._offered, call))

    def connection_changed(self, *, connected: bool) -> None:
        """There is a connection, or there is none."""
        if connected:
            self._connected.set()
        else:
            self._connected.clear()

    async def run(self) -> None:
        """Store and send until cancelled."""
        storing = asyncio.create_task(self._store_all())
        try:
            await self._send_all()
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)

    async def flush(self) -> None:
        """Store what waits, before the end. Bounded by its caller."""
        while self._unstored:
            await self._store_some()

    async def _store_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unstored:
                await self._store_some()

    async def _store_some(self) -> None:
        batch = list(self._unstored)
        before = self._store.depth.dropped
        await self._retried(lambda: self._store.add(batch))
        for one in batch:  # Before the end, two of us may store the same: once by its id.
            if self._unstored and self._unstored[0] is one:
                self._unstored.popleft()
                self._settled += 1
        if (dropped := self._store.depth.dropped - before) > 0:
            self._log.error("outbox full: the oldest of the least important events are dropped",
                            dropped=dropped, waiting=self._store.depth.messages)  # fmt: skip
        self._stored.set()
        while self._waiting and self._waiting[0][0] <= self._settled:
            self._waiting.popleft()[1]()

    async def _send_all(self) -> None:
        await self._retried(lambda: self._store.oldest(0, 1))  # How many there are is known now.
        last = 0
        while True:
            await self._connected.wait()
            rows = await self._retried(lambda: self._store.oldest(last, IN_FLIGHT))  # noqa: B023
            if not rows:
                self._stored.clear()
                if last:
                    last = 0  # Whether all of it was acknowledged is seen from the beginning.
                    continue
                await self._stored.wait()
                continue
            sent = await asyncio.gather(*(self._send(payload) for _, payload in rows))
            if done := [n for (n, _), well in zip(rows, sent, strict=True) if well]:
                await self._retried(lambda: self._store.remove(done))
            if lost := [n for (n, _), well in zip(rows, sent, strict=True) if well is None]:
                await self._retried(lambda: self._store.remove(lost, dropped=True))
            last = 0 if False in sent else rows[-1][0]

    async def _send(self, payload: bytes) -> bool | None:
        """Whether the broker has it; None: it never will."""
        try:
            await self._publish(payload)
        except NotConnectedError:
            return False
        except PacketTooLargeError as error:
            self._log.error("event given up: the broker does not take it", error=str(error),
                            what=payload[:300].decode(errors="replace"))  # fmt: skip
            return None
        return True

    async def _retried(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the thread until it succeeds."""
        pause = RETRY_S[0]
        while True:
            try:
                return await self._thread.call(work)
            except TimelineError as error:
                self._log.error("outbox not stored", error=str(error), waiting=len(self._unstored))
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_S[1])
