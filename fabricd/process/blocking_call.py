"""Blocking calls in a thread of their own, waited for only so long: a driver may never answer."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

T = TypeVar("T")
EXECUTOR_THREADS = 4


def started_executor(threads: int = EXECUTOR_THREADS) -> ThreadPoolExecutor:
    """An executor that has all its threads from the start: no limit can refuse one later.

    Raises:
        RuntimeError: the system does not give so many.
    """
    executor = ThreadPoolExecutor(threads, thread_name_prefix="executor")
    all_run = threading.Barrier(threads)
    for future in [executor.submit(all_run.wait, 60) for _ in range(threads)]:
        future.result()
    return executor


class BlockingCaller:
    """One thread for all calls, one call at a time; while one hangs there is no other.

    Not `asyncio.to_thread`: its few threads are shared, and the loop waits for them when it ends.
    The thread is made with the first call and stays, so that a limit of threads that is reached
    later takes nothing away.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        """Args: ``name`` of the thread; ``limit_s``: a call that takes longer hangs."""
        self.limit_s = limit_s
        self._name = name
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """A call has not returned yet."""
        return self._busy

    async def wait_idle(self) -> None:
        """Wait until no call is under way; a cancelled caller leaves its call behind."""
        await self._idle.wait()

    async def call(self, work: Callable[[], T], take: Callable[[T], None]) -> bool:
        """Call ``work`` in the thread, and ``take`` in the loop with what it returns, however late.

        Returns:
            False when it hangs; also when an earlier call still does, or the system gives no
            thread: then nothing was begun.

        Raises:
            Exception: whatever ``work`` or ``take`` raised in time.
        """
        if self._busy or not self._running():
            return False
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._busy = True
        self._idle.clear()

        def back(finish: Callable[[], None]) -> None:
            self._busy = False
            self._idle.set()
            if done.done():
                finish()  # Late: what it raises goes to the loop's handler of exceptions.
                return
            try:
                finish()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                finish = _raiser(error)
            else:
                finish = lambda: take(result)  # noqa: E731
            with contextlib.suppress(RuntimeError):  # The loop is closed: the daemon ended.
                loop.call_soon_threadsafe(back, finish)

        self._calls.put(run)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limit_s):
                await done
                return True
        return False

    def _running(self) -> bool:
        if self._thread is not None:
            return True
        thread = threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            structlog.get_logger().error("no thread", name=self._name, error=str(error))
            return False
        self._thread = thread
        return True


def _work(calls: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()


def _raiser(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it
