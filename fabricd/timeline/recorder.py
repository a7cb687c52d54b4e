"""Writes the timeline behind the daemon's back: a thread with a bounded queue.

Disks stall and fill; steering must not notice. What always holds: events and state documents are
stored in the order in which they were put (so a state that accounts for a flap is never stored
before its FLAP row); a store that fails is tried again; when the queue is full, FLAP rows are
merged per link (the count stays exact) and other rows are dropped and counted. What jobs' pages say
has a quarter of the queue. What no store can take is given up alone: neither its neighbours nor the
thread go with it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import structlog

from telemetry.events import Event, EventKind
from telemetry.timeline import Retention, TimelineError

_BATCH = 512
CLAIMS_PART = 4
"""One of so many places in the queue may be a job's page's."""
_RETRY_S = (0.2, 5.0)
_PRUNE_S = 600.0


class Store(Protocol):
    """What the recorder needs of `telemetry.timeline.Timeline`."""

    def append(self, events: Sequence[Event]) -> list[Event]: ...  # noqa: D102
    def set_state(self, key: str, document: object) -> None: ...  # noqa: D102
    def prune(  # noqa: D102
        self, now_wall_ns: int, retention: Retention | None = None
    ) -> object: ...
    def size_bytes(self) -> int: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


Item = Event | tuple[str, Any]
Batch = list[Event] | list[tuple[str, Any]]


class Recorder:
    """One writer thread.

    Attributes:
        stored: events stored since the start.
        failures: appends that failed (and were tried again).
        dropped: events given up because the queue was full, or no store could take them.
        size_bytes: of the database, as last seen.
        retention: how much is kept from now on; None: as the store was opened.
    """

    def __init__(self, opener: Callable[[], Store], *, max_events: int = 20_000) -> None:
        """Args: ``opener`` opens the store, in the thread; ``max_events`` bounds the queue."""
        self.stored = self.failures = self.dropped = self.size_bytes = 0
        self.retention: Retention | None = None
        self._opener = opener
        self._max = max_events
        self._queue: deque[Item] = deque()
        self._claims = 0
        """PLUGIN rows in it."""
        self._merged: dict[str, Event] = {}
        self._busy = 0
        self._writing = False
        self._wake = threading.Condition()
        self._stop = False
        self._kept = ""
        """Why the last prune left old rows alone."""
        self._store: Store | None = None
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self, store: Store | None = None) -> None:
        """Start the thread, with a store that is open already or not."""
        self._store = store
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Events not stored yet."""
        return len(self._queue) + len(self._merged) + self._busy

    @property
    def idle(self) -> bool:
        """Whether everything that was put is stored (or given up), state documents included."""
        with self._wake:
            return not (self._queue or self._merged or self._writing)

    def put(self, events: Sequence[Event]) -> None:
        """Queue events; never blocks for the disk."""
        if not events:
            return
        with self._wake:
            for event in events:
                claim = event.kind is EventKind.PLUGIN
                if len(self._queue) < self._max and not (
                    claim and self._claims >= self._max // CLAIMS_PART
                ):
                    self._queue.append(event)
                    self._claims += claim
                elif event.kind is EventKind.FLAP:
                    self._merge(event)
                else:
                    self.dropped += 1
            self._wake.notify()

    def put_state(self, key: str, document: object) -> bool:
        """Queue a state document; it replaces one of the same key that still waits at the end.

        Returns:
            False when there is no room: put a later one.
        """
        with self._wake:
            for position in range(len(self._queue) - 1, -1, -1):
                item = self._queue[position]
                if isinstance(item, Event):
                    break
                if item[0] == key:
                    self._queue[position] = (key, document)
                    return True
            if self._merged or len(self._queue) >= self._max:
                return False  # Rows it accounts for are not in line yet.
            self._queue.append((key, document))
            self._wake.notify()
        return True

    def stop(self, timeout_s: float = 3.0) -> bool:
        """Store what waits and end; False when ``timeout_s`` was not enough."""
        with self._wake:
            self._stop = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self.waiting

    def _merge(self, event: Event) -> None:
        old = self._merged.get(event.link)
        if old is not None:
            event = replace(event, count=event.count + old.count)
        self._merged[event.link] = event

    def _run(self) -> None:
        next_prune = time.monotonic() + 30.0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._stop, timeout=30.0)
                if self._stop and not self._queue and not self._merged:
                    break
                batch = self._take()
            if not self._store_all(batch):
                return
            if time.monotonic() >= next_prune:
                next_prune = time.monotonic() + _PRUNE_S
                self._prune()
        if self._store is not None:
            self._store.close()

    def _store_all(self, batch: Batch) -> bool:
        """Store a batch, as a whole or in parts; False when told to stop before it was."""
        left = [batch] if batch else []
        delay = _RETRY_S[0]
        while left:
            parts = self._write(left[0])
            if parts is not None:
                left[:1] = parts
                delay = _RETRY_S[0]
                continue
            if self._stop:
                return False
            time.sleep(delay)
            delay = min(delay * 2, _RETRY_S[1])
        self._busy = 0
        self._writing = False
        return True

    def _take(self) -> Batch:
        """The next events, or the next documents: never both, so that order is kept."""
        if not self._queue and self._merged:
            self._queue.extend(self._merged.values())
            self._merged.clear()
        events: list[Event] = []
        states: dict[str, Any] = {}
        while self._queue and len(events) < _BATCH:
            item = self._queue[0]
            if isinstance(item, Event):
                if states:
                    break
                events.append(item)
                self._claims -= item.kind is EventKind.PLUGIN
            else:
                if events:
                    break
                states[item[0]] = item[1]
            self._queue.popleft()
        if not self._queue and self._merged:
            self._queue.extend(self._merged.values())
            self._merged.clear()
        self._busy = len(events)
        self._writing = bool(events or states)
        return events or list(states.items())

    def _write(self, batch: Batch) -> list[Batch] | None:
        """Store a batch, all or none of its events.

        Returns:
            What is left to be stored, in order: nothing when it is done with, its halves when it
            cannot be stored as it is; None: the same again later.
        """
        try:
            if self._store is None:
                self._store = self._opener()
            events = [item for item in batch if isinstance(item, Event)]
            if events:
                self._store.append(events)
                self.stored += len(events)
            for item in batch:
                if not isinstance(item, Event):
                    self._store.set_state(item[0], item[1])
        except Exception as error:
            # Not only the store's own: an integer too wide for SQLite or text that is no Unicode
            # raise others, and without this thread nothing would be stored ever again.
            if self.failures % 20 == 0:
                self._log.error("timeline not written", error=_said(error), waiting=self.waiting)
            self.failures += 1
            if self._store is None or (isinstance(error, TimelineError) and error.retryable):
                return None
            if len(batch) > 1:
                half = len(batch) // 2
                return [batch[:half], batch[half:]]
            self._log.error("given up: no store takes it", what=str(batch[0])[:300])
            self.dropped += sum(isinstance(item, Event) for item in batch)
        self._busy = max(0, self._busy - sum(isinstance(item, Event) for item in batch))
        return []

    def _prune(self) -> None:
        try:
            if self._store is not None:
                result = self._store.prune(time.time_ns(), self.retention)
                kept = getattr(result, "kept", "")
                if kept and not self._kept:
                    self._log.warning("old rows stay: is the clock right?", why=kept)
                self._kept = kept
                self.size_bytes = self._store.size_bytes()
        except Exception as error:
            self.failures += 1
            self._log.warning("timeline not pruned", error=_said(error))


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, TimelineError) else repr(error)
