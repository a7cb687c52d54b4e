"""Applies operator overrides: records the event, updates the engine and the steer page."""

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
    """Applies the overrides of one host.

    Attributes:
        manager: accepts overrides and stores them.
    """

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
            stop_file=str(self._settings.config.paths.stop_file),
        )

    def open(self) -> list[str]:
        """Take over an earlier daemon's overrides; returns what was not usable."""
        refused = self.manager.open()
        self.refresh()
        return refused

    def refresh(self) -> None:
        """Give the engine the overrides that are in force."""
        self._engine.override(self.manager.effective(self.host))

    def apply(self, change: OverrideChange) -> Override:
        """Apply what the manager has granted; the steer page has it when this returns."""
        if change.forgiven:
            self._engine.forgive(change.forgiven)
        self._events.emit([change.event])
        self._settle()
        return change.override

    def tick(self, now: int) -> None:
        """End the overrides whose time is over. ``now``: CLOCK_MONOTONIC ns."""
        ended = self.manager.expire(self.host, now)
        if ended:
            self._events.emit(ended)
            self._settle()

    def document(self) -> dict[str, Any]:
        """The overrides in force as JSON, for ``status``."""
        return self.manager.document(self._engine.overrides.off, time.monotonic_ns())

    def _settle(self) -> None:
        """Publish the overrides on the steer page.

        It evaluates twice: a link that returns from a drain is judged before it carries traffic.
        """
        self.refresh()
        self._evaluator.step()
        self._evaluator.step()
