"""Takes readings of NICs and verbs ports from threads, and forecasts from a process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fabricd.engine import Engine
from fabricd.links.carrier import CarrierTracker
from fabricd.links.ibports import Port
from fabricd.nics.monitor import NicMonitor
from fabricd.nics.reader import Reading
from fabricd.predict.forecast import Forecast
from fabricd.runtime.evaluator import Evaluator
from fabricd.runtime.probe_planner import ProbePlanner


class NicInput:
    """Passes readings to the NIC monitor and the engine. Call it on the event loop only."""

    def __init__(
        self,
        engine: Engine,
        nics: NicMonitor,
        tracker: CarrierTracker,
        *,
        planner: ProbePlanner,
        evaluator: Evaluator,
    ) -> None:
        self._engine, self._nics, self._tracker = engine, nics, tracker
        self._planner, self._evaluator = planner, evaluator

    def nics_read(self, readings: Sequence[Reading]) -> None:
        """Take what a thread read of the NICs."""
        now, flaps = time.monotonic_ns(), self._tracker.totals
        events, changed = self._nics.take(readings, self._engine, flaps, now)
        self._evaluator.report(events, changed=changed)

    def nics_checked(self, hanging: Mapping[str, float]) -> None:
        """Take, at each tick, the NICs that do not answer → for how many seconds."""
        events, changed = self._nics.check(self._engine, hanging, time.monotonic_ns())
        self._evaluator.report(events, changed=changed)

    def foretold(self, forecasts: Mapping[str, Forecast]) -> None:
        """Take the failure forecast of one window, by netdev."""
        events, changed = self._nics.foretold(self._engine, forecasts, time.monotonic_ns())
        self._evaluator.report(events, changed=changed)

    def ports_found(self, ports: Mapping[str, Sequence[Port]]) -> None:
        """Which verbs ports stand behind the links, by netdev: RDMA is probed there."""
        self._planner.ports_found(ports)

    def ports_read(self, active: Mapping[str, bool | None]) -> None:
        """Take the state of the verbs ports by netdev; the state of a missing one is unknown."""
        for link in self._engine.links:
            self._engine.report_port(link, active.get(link.netdev))
