"""One watched host lives through a story: the daemon's own code on a simulated prober's rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.detect import fleet
from bench.detect.paths import Noise, PathSim, PathTable, is_quiet, quiet_table
from bench.detect.scenario import RAILS, START_S, Port, Scenario
from bench.detect.traffic import Floats, in_spans
from fabricd.detect.evidence import Places, flows, loss_counters, path_views
from fabricd.detect.locate import Blame, Flow
from fabricd.detect.loss import LossTest
from fabricd.engine import Engine
from fabricd.links.carrier import CarrierTracker
from fabricd.links.flaps import FlapLedger
from fabricd.probes.records import PathRow
from telemetry.events import LinkState

TICK_S = 0.5
"""The daemon's (`fabricd.daemon.TICK_S`); while losses are suspected it looks between them too."""
POLL_S = 0.002
BATCH_S = 0.01
LOOK_S = START_S + 3.0
WORSE = (LinkState.DOWN, LinkState.DEGRADED)
NS = 1e9


@dataclass(frozen=True, slots=True)
class Claim:
    """The daemon said that a link (``peer`` None) or path is at fault."""

    host: int
    rail: int
    at: float
    state: LinkState
    reason: str
    peer: Port | None = None


@dataclass(slots=True)
class Story:
    """What one daemon said."""

    host: int
    claims: list[Claim] = field(default_factory=list)
    places: list[tuple[float, Blame]] = field(default_factory=list)
    published: int = 0
    evaluations: int = 0
    flows: list[Flow] = field(default_factory=list)
    """What its paths said at `LOOK_S`, for the view of many hosts."""
    dark: list[tuple[str, int]] = field(default_factory=list)
    lit: list[tuple[str, int]] = field(default_factory=list)


class Watched:
    """One host."""

    def __init__(self, story: Scenario, noise: Noise, host: int) -> None:
        self.story, self.noise, self.host = story, noise, host
        specs = fleet.paths(host)
        self.engine = Engine(fleet.config(host), specs)
        self.tracker = CarrierTracker(self.engine, FlapLedger("boot"), {})
        self.loss = LossTest(fleet.name(host), topology=fleet.topology())
        self.places = Places(fleet.name(host), fleet.topology())
        self.told = Story(host)
        count = [sum(s.link == r for s in specs) for r in range(RAILS)]
        busy = {
            i: PathSim(story, noise, host, s, count[s.link])
            for i, s in enumerate(specs)
            if not is_quiet(story, noise, host, s)
        }
        self._between: frozenset[float] = frozenset()
        """Moments between two ticks at which nothing else happens."""
        self.moments = self._moments([sim.news() for sim in busy.values()])
        self.tables: list[PathTable] = [
            busy[i].table(self.moments) if i in busy
            else quiet_table(noise, host, s, count[s.link], self.moments, story.seed)
            for i, s in enumerate(specs)
        ]  # fmt: skip
        self._downs = [0] * RAILS
        # Plain numbers: reading arrays one by one is what would take the time.
        self._cells = [
            list(
                zip(
                    t.last.tolist(), t.said.tolist(), t.due.tolist(), t.awake.tolist(),
                    t.acked.tolist(), t.sent.tolist(),
                    t.received.tolist(), t.rx_lost.tolist(), t.tx_lost.tolist(),
                    t.rx_missed.tolist(), t.tx_missed.tolist(),
                    t.rx_bitmap.tolist(), t.tx_bitmap.tolist(), t.queue.tolist(), strict=True,
                )
            )
            for t in self.tables
        ]  # fmt: skip

    def _edges(self) -> list[tuple[float, int, bool, bool]]:
        """(when read, rail, carrier, went down) of the own ports; read every 2 ms."""
        out = []
        for rail in range(RAILS):
            for begin, end in self.story.dark.get((self.host, rail), []):
                if end - begin < POLL_S:
                    out.append((end + POLL_S / 2, rail, True, True))
                    continue
                out += [(begin + POLL_S / 2, rail, False, True)]
                out += [(end + POLL_S / 2, rail, True, False)]
        return sorted(out)

    def _moments(self, news: list[Floats]) -> Floats:
        length = self.story.length
        ticks = np.arange(TICK_S, length, TICK_S)
        between = np.round(ticks - TICK_S / 2, 4)
        edges = np.array([edge[0] for edge in self._edges()])
        # One waking for the events of `BATCH_S`; carrier is read when it is read.
        calls = np.ceil(np.concatenate([ticks, *news]) / BATCH_S) * BATCH_S
        found = np.unique(np.round(np.concatenate([calls, edges]), 4))
        self._between = frozenset(np.setdiff1d(between, found).tolist())
        found = np.union1d(found, between)
        found = found[(found > 0) & (found < length)]
        # A daemon on a host that does not schedule it reads when it runs again.
        stalls = [span for span in self.story.stalls.get(self.host, []) if span[1] < length]
        ends = np.array([end + 1e-3 for _, end in stalls])
        gone = self.story.gone.get(self.host)
        found = np.unique(np.concatenate([found[~in_spans(found, stalls)], ends]))
        return found if gone is None or gone[1] < length else found[found < gone[0]]

    def run(self) -> Story:
        """The whole story."""
        edges = self._edges()
        for link in self.engine.links:
            self._read(link.index, carrier=True)
        last_tick, lived, stalled = 0.0, False, 0.0
        gone = self.story.gone.get(self.host)
        for i, now in enumerate(self.moments.tolist()):
            while edges and edges[0][0] <= now:
                _, rail, carrier, down = edges.pop(0)
                self._downs[rail] += down
                self._read(rail, carrier=carrier)
            alive = gone is None or not gone[0] <= now < gone[1]
            if alive and not lived:
                self.loss.rebase()
            lived = alive
            born = gone[1] if gone is not None and now >= gone[1] else 0.0
            pace = TICK_S / 2 if self.loss.suspects else TICK_S
            if now in self._between and now - last_tick < pace * 0.99:
                continue  # The daemon does not look.
            rows = self._rows(i, born) if alive else None
            ns = round(now * NS)
            views = None if rows is None else path_views(rows, self.engine.paths)
            outcome = self.engine.evaluate(views, ns)
            self.told.evaluations += 1
            for change in outcome.changes:
                step = change.transition
                self.told.published += step.published and not change.peer
                if step.to_state in WORSE and step.from_state not in WORSE:
                    peer = self._port(change.address) if change.address else None
                    claim = Claim(self.host, change.rail, now, step.to_state, step.reason, peer)
                    self.told.claims.append(claim)
            if rows is not None and now - last_tick >= pace * 0.99:
                gaps = [s for s in self.noise.stalls(self.host) if last_tick < s[1] <= now]
                stalled = sum(end - begin for begin, end in gaps)
                last_tick = now
                self._tick(rows, ns, round(stalled * NS))
        return self.told

    def _tick(self, rows: list[PathRow], now: int, stalled: int) -> None:
        """What `fabricd.runtime.host.Host.feed_loss` does."""
        verdict = self.loss.feed(loss_counters(rows, self.engine), now, stalled_ns=stalled)
        self.engine.report_loss(verdict.links, verdict.paths)
        views = path_views(rows, self.engine.paths)
        found = [*self.places.look(views, self.engine, now), *verdict.blames]
        if now / NS >= LOOK_S and not self.told.flows:
            name = fleet.name(self.host)
            self.told.flows = flows(name, views, self.engine)
            self.told.dark = [(name, x.rail) for x in self.engine.links if x.carrier is False]
            self.told.lit = [(name, x.rail) for x in self.engine.links if x.carrier]
        self.told.places += [(now / NS, blame) for blame in found]

    def _read(self, rail: int, *, carrier: bool) -> None:
        link = self.engine.links[rail]
        self.tracker.reading(
            link, ifindex=rail + 2, down_count=self._downs[rail], carrier=carrier, mono_ns=0,
            wall_ns=0, source="simulator",
        )  # fmt: skip

    @staticmethod
    def _port(address: str) -> Port:
        _, rail, high, low = (int(part) for part in address.split("."))
        return high * 256 + low, rail

    def _rows(self, i: int, born: float) -> list[PathRow]:
        """The table at moment ``i`` of a prober that began to run at ``born``."""
        rows = []
        for index, (t, cells) in enumerate(zip(self.tables, self._cells, strict=True)):
            (last, said, due, awake, acked, sent, got, rx_lost, tx_lost, *rest) = cells[i]
            rx_missed, tx_missed, rx_bits, tx_bits, wait = rest
            heard = last > born
            interval, queue = round(t.interval * NS), round(wait * NS)
            rows.append(
                PathRow(
                    index, t.spec.link, t.spec.address, 9200, 0, t.spec.clock, heard, interval,
                    interval, sent, got, rx_lost, tx_lost, 0, rx_missed if heard else 0,
                    tx_missed if heard else 0, 0, 16_000 + queue, 16_000, 16_000 + queue,
                    round(last * NS) if heard else 0, 1, rx_bits, tx_bits,
                    max(0, round(acked * NS)), max(0, round(said * NS)), max(0, round(due * NS)),
                    round(awake * 1e6),
                )
            )  # fmt: skip
        return rows
