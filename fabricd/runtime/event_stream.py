"""The host's events: each one is recorded, told to all subscribers and logged, in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from fabricd.runtime.settings import HostSettings
from fabricd.runtime.subscribers import Subscribers
from fabricd.timeline.levels import level as event_level
from fabricd.timeline.recorder import Recorder
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind


class EventStream:
    """Every event of the host enters the timeline here."""

    def __init__(self, settings: HostSettings, recorder: Recorder) -> None:
        self.recorder = recorder
        self._settings = settings
        self._subscribers = Subscribers[[dict[str, Any]]]()
        self._held: list[Event] = []
        self._log = structlog.get_logger()

    def subscribe(self, callback: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call ``callback`` with each event as JSON; returns a function that unsubscribes it."""
        return self._subscribers.add(callback)

    def hold(self, events: Sequence[Event]) -> None:
        """Record these before the next ones."""
        self._held += events

    @property
    def holds(self) -> bool:
        """Whether events wait for the next ones."""
        return bool(self._held)

    def emit(self, events: Sequence[Event]) -> None:
        """Record the held events, then these."""
        events, self._held = [*self._held, *events], []
        if not events:
            return
        self.recorder.put(events)
        for item in events:
            document = item.to_dict() | {"host": self._settings.config.host.name}
            self._subscribers.tell(document)
            skip = {"kind", "wall_ns", "mono_ns", "data", "host"}
            fields = {key: value for key, value in document.items() if key not in skip}
            log = getattr(self._log, event_level(item))
            log(item.kind.value, **fields, **item.data)

    def record(self, kind: EventKind, reason: str, **data: Any) -> None:  # noqa: ANN401
        """Record one event of the host as a whole."""
        self.emit([event(kind, reason=reason, data=data)])
