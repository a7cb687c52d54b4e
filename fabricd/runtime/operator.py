"""Does what operator overrides ask for: events, the engine's overrides, the page."""

from __future__ import annotations

import time
from typing import Any

from fabricd.engine import Engine
from fabricd.operate.manager import OverrideChange, OverrideManager, SteeredHost
from fabricd.operate.overrides import Override
from fabricd.runtime.evaluator import Evaluator
from fabricd.runtime.event_stream import EventStream
from fabricd.runtime.settings import HostSettings
from fabricd.runtime.state_publisher import StatePublisher


class OperatorActions:
    """The overrides of one host at work. Attribute ``manager``: accepts and keeps them."""

    def __init__(
        self,
        settings: HostSettings,
        engine: Engine,
        manager: OverrideManager,
        *,
        publisher: StatePublisher,
        evaluator: Evaluator,
        events: EventStream,
    ) -> None:
        self.manager = manager
        self._settings, self._engine = settings, engine
        self._publisher, self._evaluator, self._events = publisher, evaluator, events

    @property
    def host(self) -> SteeredHost:
        """What the manager has to know of the host, as of now."""
        publisher = self._publisher
        return SteeredHost(
            links=self._engine.links,
            paths=self._engine.paths,
            modes=publisher.mode_by_link(),
            stopped=publisher.modes.stopped,
            detectors_off=frozenset(self._settings.config.detectors.off),
        )

    def open(self) -> list[str]:
        """Take over an earlier daemon's overrides; returns what was not usable."""
        refused = self.manager.open()
        self.refresh()
        return refused

    def refresh(self) -> None:
        """Hand the engine what is in force."""
        self._engine.override(self.manager.effective(self.host))

    def apply(self, change: OverrideChange) -> Override:
        """Do what the manager has granted; the page says so when this returns."""
        if change.vouched:
            self._engine.forgive(change.vouched)
        self._events.emit([change.event])
        self._settle()
        return change.override

    def tick(self, now: int) -> None:
        """End what is over. ``now``: CLOCK_MONOTONIC ns."""
        ended = self.manager.expire(self.host, now)
        if ended:
            self._events.emit(ended)
            self._settle()

    def document(self) -> dict[str, Any]:
        """All that is in force, for ``status``."""
        return self.manager.document(self._engine.overrides.off, time.monotonic_ns())

    def _settle(self) -> None:
        """Have the page say it now.

        Twice: what comes back from a drain is judged before traffic finds it.
        """
        self.refresh()
        self._evaluator.step()
        self._evaluator.step()
