"""The prober's path table as the detectors want it. Pure.

Daemon and simulator both go through here, so what is measured on the simulator is what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fabricd.detect.locate import CLEAN, SILENT, Blame, Flow, Topology, locate
from fabricd.detect.loss import LossCounters
from fabricd.detect.silence import PathView
from fabricd.engine import Engine, Path
from fabricd.probes.records import PathRow
from telemetry.events import LinkState

STEADY_NS = 10**9
"""A place is told once the answer has been the same for so long: probes arrive one by one."""


def path_views(rows: Iterable[PathRow], paths: Sequence[Path]) -> list[PathView]:
    """For `Engine.evaluate`: misses in a row."""
    return [
        PathView(
            row.index,
            row.link,
            paths[row.index].spec.peer,
            row.established and row.last_heard_ns > 0,
            row.rx_missed,
            row.tx_missed,
            row.peer_interval_ns or row.interval_ns,
            row.last_heard_ns,
            row.received,
            row.acked_ns,
            row.due_ns,
        )
        for row in rows
    ]


def loss_counters(rows: Iterable[PathRow], engine: Engine) -> list[LossCounters]:
    """For `LossTest.feed`: packets lost by direction, and the queue."""
    out = []
    for row in rows:
        spec = engine.paths[row.index].spec
        latest = min(row.rtt_last_ns, row.rtt_smoothed_ns)
        out.append(
            LossCounters(
                row.index,
                row.link,
                engine.links[row.link].rail,
                spec.peer,
                spec.peer_rail,
                row.sent,
                row.received,
                row.rx_lost,
                row.tx_lost,
                row.rx_bitmap,
                row.tx_bitmap,
                row.peer_interval_ns or row.interval_ns,
                max(0, latest - row.rtt_min_ns),
                outage=engine.in_outage(row.index),
            )
        )
    return out


def flows(host: str, views: Iterable[PathView], engine: Engine) -> list[Flow]:
    """For `locate`: which directions are silent and which are well.

    A path never heard says nothing. While nothing is heard on a path, nobody can tell whether we
    are heard there.
    """
    out = []
    for view in views:
        spec = engine.paths[view.index].spec
        own, peer = (host, engine.links[view.link].rail), (spec.peer, spec.peer_rail)
        if not view.heard:
            continue
        out.append(Flow(peer, own, _ratio(view.rx_missed, engine)))
        if not view.rx_missed:
            out.append(Flow(own, peer, _ratio(view.tx_missed, engine)))
    return out


def _ratio(missed: int, engine: Engine) -> float:
    if missed >= engine.rules.misses:
        return SILENT
    return 0.0 if missed else CLEAN


class Places:
    """Says where the faults are, each answer once."""

    def __init__(self, host: str, topology: Topology | None = None) -> None:
        self.host = host
        self.topology = topology or Topology()
        self.now: list[Blame] = []
        """The steady answer."""
        self._seen: list[Blame] = []
        self._since_ns = 0

    def look(self, views: Sequence[PathView], engine: Engine, now: int) -> list[Blame]:
        """Locate what fails at ``now``; returns the answers that are new and steady.

        Call it about twice a second.
        """
        seen = self._locate(views, engine)
        if _names(seen) != _names(self._seen):
            self._since_ns = now
        self._seen = seen
        if now - self._since_ns < STEADY_NS:
            return []
        known = _names(self.now)
        self.now = seen
        return [blame for blame in seen if (blame.kind, blame.element) not in known]

    def _locate(self, views: Sequence[PathView], engine: Engine) -> list[Blame]:
        used = [
            x for x in engine.links if x.health.state not in (LinkState.UNKNOWN, LinkState.ADMIN)
        ]
        dark = [(self.host, x.rail) for x in used if x.carrier is False]
        misses = engine.rules.misses
        if not dark and not any(max(v.rx_missed, v.tx_missed) >= misses for v in views if v.heard):
            return []
        lit = [(self.host, x.rail) for x in used if x.carrier]
        seen = flows(self.host, views, engine)
        return locate(seen, topology=self.topology, dark=dark, lit=lit, certain=True)


def _names(blames: Iterable[Blame]) -> set[tuple[str, str]]:
    return {(blame.kind, blame.element) for blame in blames}
