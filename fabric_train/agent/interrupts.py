"""SIGINT of a terminal, which goes to fabric-run and to all its ranks at once.

Ranks have to hear of it from fabric-run alone: a rank that ends by it counts as lost. So the signal
is blocked before the ranks start, which inherit that, and a thread waits for it. A rank ignores
it and takes the block away again. torchrun starts its ranks in sessions of their own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_LOOK_S = 0.1


@contextlib.contextmanager
def kept_from_ranks(notify: Callable[[], None]) -> Iterator[None]:
    """Inside, an interrupt calls ``notify`` on another thread, and reaches no process started here.

    For the main thread, before it starts others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            found = signal.sigtimedwait({signal.SIGINT}, _LOOK_S)
            # CPython returns memory of any content where another signal comes as the time is over.
            if found is not None and found.si_signo == signal.SIGINT:
                notify()

    thread = threading.Thread(target=watch, name="fabric-interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
