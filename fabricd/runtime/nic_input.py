"""Takes what threads and the forecast's process find out about the NICs and their verbs ports."""

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
    """All of it is called on the event loop."""

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
        """What a thread read of the NICs."""
        now, flaps = time.monotonic_ns(), self._tracker.totals
        events, changed = self._nics.take(readings, self._engine, flaps, now)
        self._evaluator.report(events, changed=changed)

    def nics_checked(self, hanging: Mapping[str, float]) -> None:
        """Each tick: which NICs do not answer → for how many seconds."""
        events, changed = self._nics.check(self._engine, hanging, time.monotonic_ns())
        self._evaluator.report(events, changed=changed)

    def foretold(self, forecasts: Mapping[str, Forecast]) -> None:
        """A window of the failure forecast."""
        events, changed = self._nics.foretold(self._engine, forecasts, time.monotonic_ns())
        self._evaluator.report(events, changed=changed)

    def ports_found(self, ports: Mapping[str, Sequence[Port]]) -> None:
        """Which verbs ports stand behind the links, by netdev: RDMA is probed there."""
        self._planner.ports_found(ports)

    def ports_read(self, active: Mapping[str, bool | None]) -> None:
        """State of the verbs ports behind the links; one that is missing is not known."""
        for link in self._engine.links:
            self._engine.report_port(link, active.get(link.netdev))
