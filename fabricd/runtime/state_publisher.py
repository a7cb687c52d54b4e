"""Publishes what the engine decides on the steer page, in the mode of each link."""

from __future__ import annotations

import time

from fabricd.engine import Engine
from fabricd.runtime.event_stream import EventStream
from fabricd.runtime.settings import HostSettings
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import SteerPage
from fabricd.steer.publisher import Publisher
from fabricd.timeline.rows import event
from telemetry.events import Event, EventKind


class StatePublisher:
    """Owns the steer page and the modes of a host.

    Attributes:
        modes: of the host and its groups.
        page: what the plugins read.
        weights: what the page says now.
    """

    def __init__(
        self,
        settings: HostSettings,
        engine: Engine,
        events: EventStream,
        *,
        modes: Modes,
        page: SteerPage,
    ) -> None:
        self.modes, self.page = modes, page
        self.weights = Publisher(page)
        self._settings, self._engine, self._events = settings, engine, events

    def publish(self, now: int) -> list[Event]:
        """Write the steer page; returns an event for each change. ``now``: CLOCK_MONOTONIC ns."""
        return self.weights.publish(self._engine, self.mode_by_link(), now)

    def give_back(self) -> None:
        """Before a graceful stop: every weight full, the plugins' own detectors rule."""
        now = time.monotonic_ns()
        self._events.emit(
            self.weights.publish(self._engine, self.mode_by_link(), now, give_back=True)
        )

    def mode_changed(self, why: str) -> None:
        """Publish and record that the mode of the host or of a group changed; ``why``: in words."""
        told = self.publish(time.monotonic_ns())
        mode = self.modes.effective.name.lower()
        self._events.emit([event(EventKind.MODE, reason=why, data={"mode": mode}), *told])

    def mode_of(self, netdev: str) -> Mode:
        """The mode in effect on a link; one that is not configured observes."""
        return self.mode_by_link().get(netdev, Mode.OBSERVE)

    def mode_by_link(self) -> dict[str, Mode]:
        """Netdev → the mode in effect there."""
        links = self._settings.config.links
        return {link.netdev: self.modes.of(link.group or "") for link in links}
