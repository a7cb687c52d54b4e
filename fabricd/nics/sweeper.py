"""Threads that read the NICs, away from the event loop: a read may hang in a driver. Thin.

One thread for each kind of reader. When a read hangs for longer than `STUCK_S`, the thread is left
to it and another one goes on with the other links; when it returns its link is read as before.
So at most one link is stale, and there are never more threads than links and kinds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import structlog

from fabricd.nics.reader import Reader, Reading

STUCK_S = 10.0

Deliver = Callable[[list[Reading]], None]
"""Takes what was read, in the thread; must not block."""


class Sweeper:
    """Reads all links, again and again.

    What the loop has not taken yet keeps the thread from reading: nothing piles up, and nothing is
    lost, since counters go on counting.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], Reader],
        deliver: Deliver,
        *,
        period_s: float = 1.0,
        stuck_s: float = STUCK_S,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Args: ``make``: the reader of a link; ``deliver``: see `taken`; ``clock``: ns."""
        self.name = name
        self._make, self._deliver, self._clock = make, deliver, clock
        self._period_s, self._stuck_ns = period_s, round(stuck_s * 1e9)
        self._lock = threading.Lock()
        self._readers: dict[str, Reader] = {}
        self._worker: _Worker | None = None
        self._stuck: dict[str, int] = {}
        self._stop = threading.Event()
        self._taken = threading.Event()
        self._taken.set()
        self._log = structlog.get_logger()

    def links(self, netdevs: Iterable[str]) -> None:
        """Read these from now on; those that stay keep their counts."""
        wanted = list(netdevs)
        with self._lock:
            gone = [name for name in self._readers if name not in wanted]
            closing = [self._readers.pop(name) for name in gone]
            for name in wanted:
                if name not in self._readers:
                    self._readers[name] = self._make(name)
            for reader in closing:
                if self._worker is None or self._worker.reader is not reader:
                    reader.close()  # Otherwise the worker does, once it is back.
            for name in gone:
                self._stuck.pop(name, None)

    def check(self) -> dict[str, float]:
        """Now and then: see that it runs. Returns links that hang → for how many seconds."""
        now = self._clock()
        with self._lock:
            worker = self._worker
            if self._stop.is_set():
                return {}
            if worker is not None and (reader := worker.reader) is not None:
                since = worker.since_ns
                if now - since > self._stuck_ns:
                    worker.retired = True
                    self._stuck[reader.netdev] = since
                    worker = None
                    self._log.warning("a NIC does not answer", link=reader.netdev, kind=self.name)
            if worker is None or not worker.thread.is_alive():
                self._worker = self._begin()
            return {name: (now - since) / 1e9 for name, since in self._stuck.items()}

    def _begin(self) -> _Worker | None:
        worker = _Worker(self)
        try:
            worker.thread.start()
        except RuntimeError as error:  # The limit of threads: tried again at the next check.
            self._log.error("no thread to read NICs with", kind=self.name, error=str(error))
            return None
        return worker

    def taken(self) -> None:
        """What was delivered has been taken."""
        self._taken.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """End; a thread that hangs is left behind."""
        self._stop.set()
        self._taken.set()
        if self._worker is not None:
            self._worker.thread.join(timeout_s)  # It closes the readers.

    # -- in the thread ------------------------------------------------------------------------

    def run(self, worker: _Worker) -> None:
        """The body of a worker."""
        while not self._stop.is_set() and not worker.retired:
            began = self._clock()
            if self._taken.is_set() and (found := self._round(worker)):
                self._taken.clear()
                try:
                    self._deliver(found)
                except RuntimeError:
                    return  # The loop is closed: the daemon ends.
            spent = (self._clock() - began) / 1e9
            self._stop.wait(max(0.05, self._period_s - spent))
        if self._stop.is_set() and not worker.retired:
            with self._lock:
                idle = [r for name, r in self._readers.items() if name not in self._stuck]
            for reader in idle:
                reader.close()

    def _round(self, worker: _Worker) -> list[Reading]:
        with self._lock:
            readers: Sequence[Reader] = [
                reader for name, reader in self._readers.items() if name not in self._stuck
            ]
        found: list[Reading] = []
        for reader in readers:
            if self._stop.is_set():
                return found
            now = self._clock()
            worker.reader, worker.since_ns = reader, now
            try:
                reading = reader.read(now)
            except Exception as error:
                # A parser's mistake, or a driver's nonsense: this link is not read, and says why.
                reading = Reading(reader.netdev, reader.kind, now, error=repr(error)[:200])
                with contextlib.suppress(Exception):
                    reader.close()
            if reading is not None:
                found.append(reading)
            if not self._back(worker, reader):
                break
        return found

    def _back(self, worker: _Worker, reader: Reader) -> bool:
        """A read returned; False when another thread has taken over meanwhile."""
        with self._lock:
            worker.reader = None
            dropped = self._readers.get(reader.netdev) is not reader
            if worker.retired and not dropped:
                self._stuck.pop(reader.netdev, None)
        if dropped:
            reader.close()
        return not worker.retired


class _Worker:
    """A thread and what it reads now."""

    def __init__(self, sweeper: Sweeper) -> None:
        self.reader: Reader | None = None
        self.since_ns = 0
        self.retired = False
        self.thread = threading.Thread(
            target=sweeper.run, args=(self,), name=f"nics-{sweeper.name}", daemon=True
        )
