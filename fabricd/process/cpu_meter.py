"""CPU time of one task of the event loop, and of the work that it has done in threads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Charge = Callable[[float], None]
_charge: ContextVar[Charge | None] = ContextVar("_charge", default=None)
"""Takes the seconds that are spent for the task; None: nobody counts them."""


class Metered:
    """Awaits a coroutine; ``charge`` is given the CPU time of each of its own steps."""

    def __init__(self, work: Coroutine[Any, Any, None], charge: Charge) -> None:
        self._work, self._charge = work, charge

    def __await__(self) -> Generator[Any, Any, None]:
        """Step by step: what other tasks do between two steps is not counted."""
        _charge.set(self._charge)
        steps = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            began = time.thread_time()
            try:
                awaited = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            finally:
                self._charge(time.thread_time() - began)
            try:
                thrown = None
                yield awaited
            except BaseException as error:  # cancelled, mostly
                thrown = error


def charged(work: Callable[[], T]) -> Callable[[], T]:
    """``work`` for a thread; its CPU time there counts for the task that calls this."""
    charge = _charge.get()
    if charge is None:
        return work
    loop = asyncio.get_running_loop()

    def measured() -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            with contextlib.suppress(RuntimeError):  # The loop is closed: the daemon ended.
                loop.call_soon_threadsafe(charge, time.thread_time() - began)

    return measured
