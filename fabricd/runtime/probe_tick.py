"""Feeds the prober's tables to the detectors of loss, delay and location, twice a second."""

from __future__ import annotations

import time

from fabricd.detect import evidence
from fabricd.engine import Engine
from fabricd.runtime.detectors import Detectors
from fabricd.runtime.evaluator import Evaluator
from fabricd.runtime.event_stream import EventStream
from fabricd.runtime.probe_planner import ProbePlanner
from fabricd.runtime.prober import Prober
from fabricd.runtime.settings import HostSettings
from fabricd.runtime.state_saver import StateSaver
from fabricd.timeline.rows import interface_event


class ProbeTick:
    """Feeds the detectors, and evaluates the engine when one of them changes its verdict."""

    def __init__(
        self,
        settings: HostSettings,
        engine: Engine,
        prober: Prober,
        detectors: Detectors,
        *,
        planner: ProbePlanner,
        evaluator: Evaluator,
        events: EventStream,
        saver: StateSaver,
    ) -> None:
        self._settings, self._engine = settings, engine
        self._prober, self._detectors = prober, detectors
        self._planner, self._evaluator = planner, evaluator
        self._events, self._saver = events, saver
        self._stalled_ns = 0
        self._worse = (frozenset[int](), frozenset[int]())

    @property
    def suspects_loss(self) -> bool:
        """Whether a link loses, and it is open how much and where: worth a look between ticks."""
        return self._detectors.losses.suspects

    async def ask_neighbours(self) -> None:
        """Where needed: what the peers say they see."""
        await self._detectors.localization.ask(self._prober.feed, self._engine)

    def feed_loss(self, *, between: bool = False) -> None:
        """Is a link losing more than it should, and where is what fails?

        Args:
            between: the tick is yet to come; only losses that name somebody are placed.
        """
        engine, prober, detectors = self._engine, self._prober, self._detectors
        losses, localization = detectors.losses, detectors.localization
        rows = prober.tables.rows(recent=True)
        now = time.monotonic_ns()
        self._events.emit(detectors.delay.tick(prober.feed, rows or (), engine, now))
        if rows is None:
            losses.rebase()
            return
        header = prober.feed.header()
        stalls = header.stall_ns if header else self._stalled_ns
        stalled, self._stalled_ns = max(0, stalls - self._stalled_ns), stalls
        table = prober.tables.last
        over_rdma = table.rdma_rows if table else []
        prober.counts.look([*rows, *over_rdma], header, engine, now, stalled_ns=stalled)
        counters = evidence.loss_counters(rows, engine, detectors.delay.queued_ns())
        losses.topology = localization.places.topology
        verdict = losses.feed(counters, now, stalled_ns=stalled)
        was = self._worse
        self._worse = (frozenset(verdict.links), frozenset(verdict.paths))
        engine.report_loss(verdict.links, verdict.paths)
        if self._worse != was:
            self._evaluator.step()
        self._saver.keep(now)
        localization.lost(verdict, engine)
        if verdict.blames or not between:
            table = prober.tables.last
            views = table.views if table else ()
            self._events.emit(localization.look(views, engine, now, more=verdict.blames))

    def watch_probing(self) -> None:
        """Do probes watch all links? What do large probes say? Are the interfaces there?"""
        now = time.monotonic_ns()
        links = [(link.netdev, link.rail) for link in self._engine.links]
        changes = self._detectors.interfaces.tick(links, self._planner.devices(), now)
        self._events.emit([interface_event(change) for change in changes])
        feed, probing = self._prober.feed, self._detectors.probing
        rows = self._prober.tables.rows(recent=True)
        config, addresses = self._settings.config, self._planner.addresses()
        rails = self._settings.peers.rails_in_use
        self._events.emit(
            probing.tick(
                feed, rows, self._engine, config, addresses, now,
                peer_rails=rails, notes=self._planner.address_notes(),
            )
        )  # fmt: skip
        probing.ask(feed, now, self._apply_mtu)
        self._apply_mtu()

    def _apply_mtu(self) -> None:
        if self._detectors.probing.judge_mtu(self._engine, time.monotonic_ns()):
            self._evaluator.step()
