"""Evaluates the engine, publishes the result, then records it: one `step` is one cycle."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from fabricd.engine import Engine
from fabricd.runtime.event_stream import EventStream
from fabricd.runtime.prober import Prober
from fabricd.runtime.settings import HostSettings
from fabricd.runtime.state_publisher import StatePublisher
from fabricd.runtime.state_saver import StateSaver
from fabricd.runtime.subscribers import Subscribers
from fabricd.state.evaluation import Evaluation
from fabricd.timeline.rows import evaluation_events
from telemetry.events import Event, LinkState


class Evaluator:
    """Steps when a part calls it, and by a timer at the time that engine or saver asked for.

    Attributes:
        outages: link → times that it went out of service.
        cycles: full cycles so far.
        last_cycle_wall_s: end of the last one, CLOCK_REALTIME; None: there was none.
        last_cycle_ns: the same, CLOCK_MONOTONIC; 0: there was none.
        refused_links: links that probes blame but may not take → what the probes say.
    """

    def __init__(
        self,
        settings: HostSettings,
        engine: Engine,
        prober: Prober,
        *,
        publisher: StatePublisher,
        events: EventStream,
        saver: StateSaver,
    ) -> None:
        self.outages: Counter[str] = Counter()
        self.cycles = 0
        self.last_cycle_wall_s: float | None = None
        self.last_cycle_ns = 0
        self.refused_links: dict[str, str] = {}
        self._settings, self._engine, self._prober = settings, engine, prober
        self._publisher, self._events, self._saver = publisher, events, saver
        self._silence = Subscribers[[]]()
        self._timer: asyncio.TimerHandle | None = None

    def on_silence(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when another set of hosts is silent, once the page says what follows.

        Returns a function that unsubscribes it.
        """
        return self._silence.add(callback)

    def step(self, events: Sequence[Event] = ()) -> None:
        """Evaluate, publish, then record; ``events`` are recorded first."""
        now = time.monotonic_ns()
        header = self._prober.feed.header()  # Before the rows: they are at least as new.
        as_of = header.heartbeat_ns if header else now
        silent = self._engine.silent_hosts
        table = self._prober.tables.read()
        evaluation = self._engine.evaluate(
            table and table.views, now, rdma=table.rdma_views if table else (), as_of=as_of
        )
        self._prober.counts.evaluated(evaluation, self._engine)
        for change in evaluation.changes:
            if not change.peer and change.transition.to_state is LinkState.DOWN:
                self.outages[change.netdev] += 1
        told = self._publisher.publish(now)
        if evaluation.silent_hosts != silent:
            self._silence.tell()
        if events or self._events.holds or evaluation.changes or told:
            self._saver.changed(now)
        self._events.emit([*events, *self._engine_events(evaluation), *told])
        self._saver.save_if_due(now)
        self.cycles += 1
        self.last_cycle_wall_s, self.last_cycle_ns = time.time(), time.monotonic_ns()
        due = [at for at in (evaluation.due_at, self._saver.due_ns) if at]
        self._arm(min(due, default=None), now)

    def report(self, events: Sequence[Event], *, changed: bool) -> None:
        """Record a reader's events; with ``changed`` evaluate the engine, too."""
        if changed:
            self.step(events)
        else:
            self._events.emit(events)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _engine_events(self, evaluation: Evaluation) -> list[Event]:
        flaps = self._settings.config.damping.second_tier_flaps
        events = evaluation_events(evaluation, flaps_per_hour=flaps, known=self.refused_links)
        self.refused_links = evaluation.refused
        return events

    def _arm(self, due_at: int | None, now: int) -> None:
        self.close()
        if due_at is not None:
            delay = max(0.001, (due_at - now) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay, self.step)
