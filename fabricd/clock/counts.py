"""Counters of the clock service that never fall, though it restarts. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fabricd.probes.totals import GrowingTotals
from telemetry.snapshot import ClockSnapshot

_OWN = ("references_lost", "joins", "takeovers", "refused_messages", "moves")
_PTP = ("changes", "lost", "steps", "denied", "refused")


class ClockCounts:
    """Follows the clock service's counters from look to look."""

    def __init__(self) -> None:
        self._totals = GrowingTotals()

    def update(self, shot: ClockSnapshot) -> ClockSnapshot:
        """The snapshot with totals in place of the service's counters.

        A service whose document cannot be read (``state`` is None) has no counters now: its totals
        stay as they are.
        """
        counters: dict[str, int] = {}
        if shot.state is not None:
            counters = {name: getattr(shot, name) for name in _OWN} | {"tai": shot.tai.steps}
            if shot.ptp is not None:
                counters |= {f"ptp {name}": getattr(shot.ptp, name) for name in _PTP}
        totals = self._totals.update(counters)
        ptp = shot.ptp
        if ptp is not None:
            counted: dict[str, Any] = {name: totals[f"ptp {name}"] for name in _PTP}
            ptp = replace(ptp, **counted)
        own: dict[str, Any] = {name: totals.get(name, 0) for name in _OWN}
        return replace(shot, tai=replace(shot.tai, steps=totals.get("tai", 0)), ptp=ptp, **own)
