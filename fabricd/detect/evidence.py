"""The prober's path table as the detectors want it. Pure.

Daemon and simulator both go through here, so what is measured on the simulator is what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fabricd.detect import neighbours
from fabricd.detect.locate import CLEAN, SILENT, Blame, Flow, Port, Topology, locate
from fabricd.detect.loss_rules import LossCounters
from fabricd.detect.silence import PathView
from fabricd.engine import Engine
from fabricd.probes.records import PathRow
from fabricd.state.model import Path
from telemetry.events import LinkState

STEADY_NS = 10**9
"""A place is told once the answer has been the same for so long: probes arrive one by one."""
PEER_REPORTS_NS = 2 * 10**9
"""Where peers report, they have so long to report all they see before anything is told."""
NOTICE_NS = 300 * 10**6
"""Good news from a neighbour counts when it is so much younger than the trouble: by then it would
have noticed. Silence of a path takes `misses` of its intervals, at both ends alike."""


def path_views(rows: Iterable[PathRow], paths: Sequence[Path], *, first: int = 0) -> list[PathView]:
    """For `Engine.evaluate`: misses in a row. ``first``: index of the first of ``paths``."""
    return [
        PathView(
            row.index,
            row.link,
            paths[row.index - first].spec.peer,
            row.established and row.last_heard_ns > 0 and not row.gone,
            row.rx_missed,
            row.tx_missed,
            row.peer_interval_ns or row.interval_ns,
            row.last_heard_ns,
            row.acked_ns,
            row.said_ns,
            row.due_ns,
            row.awake_us * 1000,
            row.peer_incarnation,
            row.gone,
            row.late_ns,
            _queue_ns(row),
        )
        for row in rows
    ]


def _queue_ns(row: PathRow) -> int:
    """Round trip above its least, by the newest packet and by the newest few: the lesser.

    One late packet alone is no queue.
    """
    return max(0, min(row.rtt_last_ns, row.rtt_smoothed_ns) - row.rtt_min_ns)


def loss_counters(
    rows: Iterable[PathRow], engine: Engine, queued_ns: Mapping[int, int] | None = None
) -> list[LossCounters]:
    """For `LossTest.feed`: packets lost by direction, and the queue.

    Args:
        rows: the prober's path table.
        engine: whose paths they are.
        queued_ns: queues that stand, by path (`fabricd.delay`): the row's least round trip is that
            of 20 s at most, and a queue may stand for longer.
    """
    queued = queued_ns or {}
    out = []
    for row in rows:
        spec = engine.paths[row.index].spec
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
                spec.clock,
                max(_queue_ns(row), queued.get(row.index, 0)),
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
        self.trouble_ns: int | None = None
        """Since when something fails here; None: nothing does."""
        self._seen: list[Blame] = []
        self._since_ns = 0
        self._asked: tuple[object, ...] = ()
        self._answer: list[Blame] = []

    def look(
        self,
        views: Sequence[PathView],
        engine: Engine,
        now: int,
        reports: Sequence[neighbours.PeerReport] = (),
    ) -> list[Blame]:
        """Locate what fails at ``now``; returns the answers that are new and steady.

        Call it about twice a second.

        Args:
            views: all paths.
            engine: whose they are.
            now: CLOCK_MONOTONIC ns.
            reports: what neighbours said lately; none: this host's view alone.
        """
        if not self.troubled(views, engine):
            self.trouble_ns = None
        elif self.trouble_ns is None:
            self.trouble_ns = now
        seen = self._locate(views, engine, reports)
        if reports and self.trouble_ns is not None and now - self.trouble_ns < PEER_REPORTS_NS:
            return []
        if _names(seen) != _names(self._seen):
            self._since_ns = now
        self._seen = seen
        if now - self._since_ns < STEADY_NS:
            return []
        known = _names(self.now)
        self.now = seen
        return [blame for blame in seen if (blame.kind, blame.element) not in known]

    def troubled(self, views: Sequence[PathView], engine: Engine) -> bool:
        """Whether anything fails here that has a place."""
        misses = engine.rules.misses
        if any(max(v.rx_missed, v.tx_missed) >= misses for v in views if v.heard):
            return True
        return bool(ports(self.host, engine)[0])

    def _locate(
        self, views: Sequence[PathView], engine: Engine, reports: Sequence[neighbours.PeerReport]
    ) -> list[Blame]:
        if self.trouble_ns is None:
            self._asked, self._answer = (), []
            return []
        dark, lit = ports(self.host, engine)
        seen = flows(self.host, views, engine)
        if reports:
            told = neighbours.flows(reports, well_since=self.trouble_ns + NOTICE_NS)
            more_dark, more_lit = neighbours.ports(reports)
            dark, lit = dark | more_dark, lit | more_lit
            bad = {p for f in seen if f.ratio > 0 for p in (f.source, f.target)}
            seen += neighbours.near(told, bad | dark)
        # A fault that stays is seen alike twice a second, and the answer takes 5 to 35 ms of the
        # event loop where eight rails have ten peers each; to see that it is the same takes 1 ms.
        asked = (self.topology, dark, lit, seen)
        if asked != self._asked:
            self._answer = locate(seen, topology=self.topology, dark=dark, lit=lit, certain=True)
            self._asked = asked
        return self._answer


def ports(host: str, engine: Engine) -> tuple[set[Port], set[Port]]:
    """Our ports without carrier, and those with it; never seen up and taken down are neither."""
    used = [x for x in engine.links if x.health.state not in (LinkState.UNKNOWN, LinkState.ADMIN)]
    return (
        {(host, x.rail) for x in used if x.carrier is False},
        {(host, x.rail) for x in used if x.carrier},
    )


def _names(blames: Iterable[Blame]) -> set[tuple[str, str]]:
    return {(blame.kind, blame.element) for blame in blames}
