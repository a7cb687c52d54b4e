"""Four hosts, some rails, real mesh, engines, localization and loss tests; faults by flow.

What it cannot do: queues, reordering, stalls of probers and reports that are late. Packets are
drawn by chance, silence is exact, and each host hears the reports of all that it hears. As in the
prober, packets of a silence are counted as lost when the next one arrives.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from zlib import crc32

import numpy as np

from fabricd.config.loader import parse
from fabricd.detect.localization import Localization
from fabricd.detect.locate import ANY_SPINE, Kind
from fabricd.detect.loss import LossTest
from fabricd.detect.loss_rules import LossCounters
from fabricd.detect.mesh import Node, choose
from fabricd.detect.neighbours import PeerReport, Reachability, ReportKind
from fabricd.detect.silence import PathView
from fabricd.engine import Engine
from fabricd.probes.peer_index import PeerIndex
from fabricd.views.places import link_places

SEC, STEP = 10**9, 10**9 // 2
HOSTS, RAILS = ("h0", "h1", "h2", "h3"), 3
TRAINS = 75
"""Packets a second of a path that carries clock trains, beside its share of the link's 100."""


@dataclass(frozen=True)
class Fault:
    """One fault of the lab. ``port``: (host, rail); ``way`` as seen from it.

    Every other flow between leaves goes over the spine that is meant.
    """

    kind: str
    port: tuple
    way: str = "both"
    share: float = 1.0
    peer: tuple | None = None

    def drops(self, source, target):
        """The share of packets from a port to another that it drops."""
        if self.kind in ("leaf", "leaf loss"):
            return self.share * (self.port[1] in (source[1], target[1]))
        if self.kind in ("host", "host loss"):
            return self.share * (self.port[0] in (source[0], target[0]))
        if self.kind == "spine":
            here = source[1] != target[1] and crc32(repr((source, target)).encode()) % 2
            return self.share * here
        if self.kind == "path":
            return self.share * ({source, target} == {self.port, self.peer})
        out = self.way in ("tx", "both") and source == self.port
        back = self.way in ("rx", "both") and target == self.port
        return self.share * (out or back)

    def darkens(self, port):
        """Whether it takes the carrier of a port."""
        return (self.kind == "unplug" and port == self.port) or (
            self.kind == "leaf" and port[1] == self.port[1]
        )

    @property
    def elements(self):
        """What may be blamed for it."""
        host, rail = self.port
        if self.kind in ("leaf", "leaf loss"):
            return {(Kind.LEAF, f"rail{rail}")}
        if self.kind in ("host", "host loss"):
            return {(Kind.HOST, host)}
        if self.kind == "spine":
            pairs = combinations(range(8), 2)
            return {
                (Kind.SPINE, name) for name in (ANY_SPINE, *(f"rail{a}-rail{b}" for a, b in pairs))
            }
        if self.kind == "path":
            ends = sorted((self.port, self.peer))
            return {(Kind.PATH, "-".join(f"{h}/{r}" for h, r in ends))}
        return {(Kind.LINK, f"{host}/{rail}")}


def address(host, rail):
    return f"10.{rail}.0.{HOSTS.index(host) + 1}"


class WorldHost:
    """One host of the world."""

    def __init__(self, name, rails):
        self.name = name
        peers = [Node(h, {r: (address(h, r),) for r in range(rails)}) for h in HOSTS if h != name]
        own = [(r, r, address(name, r)) for r in range(rails)]
        self.specs = choose(name, own, peers, per_rail=10, cross_rail=1)
        links = "".join(
            f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\naddress = "{address(name, r)}"\n'
            for r in range(rails)
        )
        self.config = parse(f'[host]\nname = "{name}"\n{links}', "f")
        self.engine = Engine(self.config, self.specs)
        self.losses, self.where = LossTest(name), Localization(name)
        self.where.configure(self.config, PeerIndex(()))
        keys = [(s.link, s.peer, s.peer_rail) for s in self.specs]
        self.losses.configure([f"rail{r}" for r in range(rails)], keys)
        self.per_link = Counter(s.link for s in self.specs)
        self.totals = [[0, 0, 0, 0] for _ in self.specs]
        self.uncounted = [[0, 0] for _ in self.specs]
        self.stopped_ns = 0
        self.heard_ns = [SEC for _ in self.specs]
        self.views = []
        for link in self.engine.links:
            link.carrier = True

    def ends(self, spec):
        return (self.name, spec.link), (spec.peer, spec.peer_rail)

    def rate(self, spec):
        return 100 / self.per_link[spec.link] + (TRAINS if spec.clock else 0)

    def located(self):
        """What it says of the fabric: the metric, and each link's explanation, without unknowns."""
        said = {(b.kind, b.element) for b in self.where.located()}
        pages = {}
        for link in self.engine.links:
            here, beyond = link_places(self.where, self.engine, self.name, link)
            pages[link.rail] = tuple(
                {(b.kind, b.element) for b in blames if b.kind is not Kind.UNKNOWN}
                for blames in (here, beyond)
            )
        return said, pages


class World:
    """Runs faults; ``wrong`` is what was blamed and is not so."""

    def __init__(self, seed=0, rails=RAILS):
        self.rails = rails
        self.hosts = {name: WorldHost(name, rails) for name in HOSTS}
        self.rng = np.random.default_rng(seed)
        self.now = SEC
        self.dead = set()

    def run(self, seconds, faults=(), each=lambda world: None):
        for _ in range(round(seconds * SEC / STEP)):
            self.now += STEP
            self.dead = {f.port[0] for f in faults if f.kind == "host"}
            drops, packets = {}, {}
            for host in self.hosts.values():
                for spec in host.specs:
                    ends = host.ends(spec)
                    keep = np.prod([1.0 - f.drops(*ends) for f in faults]) if faults else 1.0
                    drops[ends] = 1.0 - keep
                    sent = int(host.rate(spec) * STEP / SEC + self.rng.random())
                    packets[ends] = sent, int(self.rng.binomial(sent, drops[ends]))
            dark = {
                (h, r)
                for h in HOSTS
                for r in range(self.rails)
                if any(f.darkens((h, r)) for f in faults)
            }
            for host in self.hosts.values():
                if host.name in self.dead:
                    host.stopped_ns += STEP
                else:
                    self._step(host, drops, packets, dark)
            for host in self.hosts.values():
                if host.name not in self.dead:
                    self._place(host, drops)
            each(self)

    def _step(self, host, drops, packets, dark):
        engine, rows, host.views = host.engine, [], []
        for link in engine.links:
            carrier = (host.name, link.rail) not in dark
            engine.report_carrier(link, carrier=carrier, downs=int(link.carrier and not carrier))
        for index, spec in enumerate(host.specs):
            own, peer = host.ends(spec)
            interval = round(SEC * host.per_link[spec.link] / 100)
            silent, unheard = drops[peer, own] == 1.0, drops[own, peer] == 1.0
            if not silent:
                host.heard_ns[index] = self.now - interval // 2
            heard = host.heard_ns[index]
            missed = (self.now - heard) // interval if silent else 0
            host.views.append(
                PathView(index, spec.link, spec.peer, True, missed,
                         STEP // interval if unheard and not silent else 0, interval, heard,
                         said_ns=heard, next_ns=heard + interval, awake_ns=10**15)
            )  # fmt: skip
            (sent, tx_lost), (came, rx_lost) = packets[own, peer], packets[peer, own]
            total = host.totals[index]
            waits = host.uncounted[index]
            waits[:] = waits[0] + rx_lost, waits[1] + tx_lost
            got, rx_lost, tx_lost = came - rx_lost, 0, 0
            if not silent:
                rx_lost, waits[0] = waits[0], 0
                if not unheard:
                    tx_lost, waits[1] = waits[1], 0
            for i, value in enumerate((sent, got, rx_lost, tx_lost)):
                total[i] += value
            rows.append((index, spec, interval, total))
        engine.evaluate(host.views, self.now)
        counters = [
            LossCounters(i, s.link, s.link, s.peer, s.peer_rail, *total, interval_ns=interval,
                         trains=s.clock, outage=engine.in_outage(i))
            for i, s, interval, total in rows
        ]  # fmt: skip
        verdict = host.losses.feed(counters, self.now, stalled_ns=host.stopped_ns)
        host.stopped_ns = 0
        engine.report_loss(verdict.links, verdict.paths)
        host.where.lost(verdict, engine)

    def _place(self, host, drops):
        reports = []
        for other in self.hosts.values():
            if other is host or other.name in self.dead or not other.views:
                continue
            ways = [share for (source, target), share in drops.items()
                    if (source[0], target[0]) == (other.name, host.name)]  # fmt: skip
            if min(ways, default=1.0) == 1.0:
                continue
            reports += _reports(other, self.now)
        host.where.reports, host.where._asked_ns = reports, self.now
        host.where.look(host.views, host.engine, self.now)

    def wrong(self, faults):
        """(Host, where it says so, what): all that is blamed and is no fault of these."""
        true = set().union(*(f.elements for f in faults)) if faults else set()
        found = []
        for host in self.hosts.values():
            if host.name in self.dead:
                continue
            said, pages = host.located()
            found += [(host.name, "metric", *one) for one in said - true]
            for rail, (here, beyond) in pages.items():
                found += [(host.name, f"explain rail{rail}", *one) for one in here - true]
                found += [(host.name, f"explain rail{rail} far", *one) for one in beyond - true]
        return found


def _reports(other, now):
    misses = other.engine.rules.misses
    state = {True: Reachability.SILENT, False: Reachability.WELL}
    for view, spec in zip(other.views, other.specs, strict=True):
        silent = view.rx_missed >= misses
        told = Reachability.UNKNOWN if silent else state[view.tx_missed >= misses]
        yield PeerReport(other.name, ReportKind.PATH, spec.link, spec.peer, spec.peer_rail,
                         state[silent], told, now)  # fmt: skip
    for link in other.engine.links:
        yield PeerReport(other.name, ReportKind.PORT, link.rail, "", 0,
                         state[link.carrier is False], Reachability.UNKNOWN, now)  # fmt: skip
