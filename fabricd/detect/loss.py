"""Gray loss: is a link losing more than it should, which way, and whose fault is it? Pure.

Each link and each path has a sequential test per direction (`fabricd.detect.sequential`) over the
prober's exact counters: rx losses are holes in the peer's sequence here (the receive bitmap), tx
losses those that the peer reports. When a link's test says *sick*, what every path of the host lost
since the change is laid before `fabricd.detect.locate`: the link is DEGRADED only if it (or its
leaf) explains them and two peers or more lost packets on it. A path whose own test says sick is
called worse alone, unless its peer loses on all rails (a busy host). Then no link and no path is
worse, and the host is named.

What is no evidence:

* Readings around a gap of our own prober: its sockets may have overflowed. The counters are
  still followed, so the loss is not found later either.
* Paths that are out, or were until a moment ago: that outage is known.
* A path with a standing queue (round trip far above its least) is judged by the congested test:
  full queues drop packets too, and that is nobody's fault until it is much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from fabricd.detect.baseline_rate import BaselineRate
from fabricd.detect.locate import Blame, Kind, Topology, Way, locate, port_name
from fabricd.detect.loss_flows import flow
from fabricd.detect.loss_rules import (
    ALONE_NS,
    FULL,
    REORDER,
    TRAIN,
    LossCount,
    LossCounters,
    LossRules,
    LossVerdict,
    holes,
    is_part_of,
    shared_ratio,
)
from fabricd.detect.loss_state import (
    BothWays,
    DirectionLoss,
    LinkLoss,
    PathLoss,
    lost_text,
)
from fabricd.detect.sequential import Cusum
from fabricd.probes.records import Direction

RX, TX = Direction.RX, Direction.TX
_WAYS = (RX, TX)  # An enum's own iterator is slow, and this is asked 200 times a second.
HISTORY_NS = 2 * 10**9
ASK_MORE = 1.05
"""Losses on a link that is sick for reasons elsewhere: each is asked about at first, then the
twentieth."""
DOUBT_AGAIN = 2.0
"""A link that is blamed is asked about again with so many times the losses: the first few may have
been by chance of several peers."""
ASKED_ENOUGH = 1 / (ASK_MORE - 1)
"""From there on it is asked at every other reading at most."""
RELAPSE_NS = 3600 * 10**9
HOST_LASTS_NS = 3 * 10**9
"""A host is named whose losses go on for so long: one that was stopped loses what waited."""
LEAST_PAIRS = 2
"""Pairs of ports that have to lose before the losses of paths have a place."""
RELAPSE_FORGET = 2.0
"""What was sick within that time needs so many times the evidence to be called well again."""
PLACE_NS = 5 * 10**9
"""Where paths lose is asked when no other was called worse for so long: a spine takes many."""
PLACE_AGAIN_NS = 20 * 10**9
"""And asked again so often while they do: more losses may change the answer."""


class LossTest:
    """Feed it the counters of all paths twice a second; eight times a second while `suspects`."""

    def __init__(
        self, host: str = "", rules: LossRules | None = None, topology: Topology | None = None
    ) -> None:
        self.host = host
        self.rules = rules or LossRules()
        self.topology = topology or Topology()
        self._paths: dict[int, PathLoss] = {}
        self._links: dict[tuple[int, Direction], LinkLoss] = {}
        self._names: tuple[str, ...] = ()
        self._keys: tuple[Hashable, ...] = ()
        self._relapse = replace(
            self.rules.idle, back=1.0, forget=RELAPSE_FORGET * self.rules.idle.forget
        )
        self._path_test = replace(self.rules.idle, forget=self.rules.path_forget)
        self._cost = self.rules.idle.cost
        self._gap_ns = -1
        """When our prober last had a gap."""
        self._history: deque[tuple[int, dict[int, BothWays]]] = deque(maxlen=40)
        """Counts of all paths, `HISTORY_NS` apart, for `_place`."""
        self._filled: frozenset[int] = frozenset()
        """Links on which a queue stands, by half of their paths."""
        self._place_at: int | None = None
        self._placed: set[tuple[Kind, str]] = set()
        """Answers of `_place` that were given while paths are worse."""
        self._elsewhere: list[Blame] = []
        """Its newest answer."""
        self._host_since: dict[str, tuple[int, dict[int, BothWays]]] = {}
        """Hosts that lose on all their rails: since when an asking says so, and later counts."""
        self._lossy_hosts: dict[str, Blame] = {}
        """Those that went on for `HOST_LASTS_NS`; their links and paths are called nothing."""

    @property
    def suspects(self) -> bool:
        """Whether evidence against a link accumulates on which nothing is decided yet.

        Not where many losses were asked about in vain: the fault is a peer's and may stay.
        """
        return any(
            link.cusum.started and not link.blamed and link.asked < ASKED_ENOUGH
            for link in self._links.values()
        )

    def rebase(self) -> None:
        """The counters begin anew, perhaps: another prober. What was found until now stays.

        A link that loses too much does so whoever counts it.
        """
        for path in self._paths.values():
            path.anew = True

    def configure(self, names: Sequence[str], paths: Sequence[Hashable]) -> None:
        """Another configuration: paths that stay keep their evidence, and so do their links.

        What is usual of a link is a rate, and stays as long as the link.

        Args:
            names: of the links, by index.
            paths: what each path is (its link by name), by index.
        """
        at = {key: index for index, key in enumerate(paths)}
        moved = {i: at[key] for i, key in enumerate(self._keys) if key in at}
        stay = {path.row.link for i, path in self._paths.items() if i in moved}
        links = {}
        for (index, way), link in self._links.items():
            name = self._names[index] if index < len(self._names) else None
            if name not in names:
                continue
            if index in stay:
                link.before, link.asked_at = (
                    {moved[i]: counts for i, counts in known.items() if i in moved}
                    for known in (link.before, link.asked_at)
                )
            else:
                link = LinkLoss(link.baseline)  # Whom it could be asked about is gone.
            links[names.index(name), way] = link
        self._links = links
        for path in self._paths.values():
            name = self._names[path.row.link] if path.row.link < len(self._names) else None
            if name in names:
                path.row = path.row._replace(link=names.index(name))
        self._paths = {moved[i]: path for i, path in self._paths.items() if i in moved}
        history = [
            (when, {moved[i]: n for i, n in counts.items() if i in moved})
            for when, counts in self._history
        ]
        self._history = deque(history, maxlen=self._history.maxlen)
        self._names, self._keys = tuple(names), tuple(paths)
        self.rebase()

    def save(self) -> dict[str, dict[str, list[float]]]:
        """A JSON document of what is usual, by link and direction."""
        out: dict[str, dict[str, list[float]]] = {}
        for (index, way), link in self._links.items():
            if index < len(self._names):
                out.setdefault(self._names[index], {})[way.name.lower()] = link.baseline.save()
        return out

    def restore(self, document: object) -> list[str]:
        """Take over what `save` gave, of links that are there; returns what was not usable."""
        if not isinstance(document, dict):
            return ["usual losses"]
        refused = []
        for index, name in enumerate(self._names):
            for way in Direction if name in document else ():
                try:
                    events, exposure = document[name][way.name.lower()]
                    self._link(index, way).baseline.restore(float(events), float(exposure))
                except (KeyError, TypeError, ValueError, OverflowError):
                    refused.append(f"usual losses of {name} {way.name.lower()}")
        return refused

    def feed(self, rows: Iterable[LossCounters], now: int, *, stalled_ns: int = 0) -> LossVerdict:
        """Take the counters at ``now``.

        Args:
            rows: all paths.
            now: CLOCK_MONOTONIC ns.
            stalled_ns: for how long our own prober did not run since the last call.
        """
        if stalled_ns >= self.rules.stall_ns:
            self._gap_ns = now
        links: dict[tuple[int, Direction], list[float]] = {}
        rows = list(rows)
        queue_ns = self.rules.queue_ns
        queues: dict[int, list[bool]] = {}
        for row in rows:
            queues.setdefault(row.link, []).append(row.queue_ns > queue_ns)
        queued = {link for link, found in queues.items() if any(found)}
        self._filled = frozenset(
            link for link in queued if 2 * sum(queues[link]) >= len(queues[link])
        )
        for row in rows:
            for way, nats, lost, packets in self._advance(row, now):
                totals = links.get((row.link, way)) or links.setdefault(
                    (row.link, way), [0.0, 0.0, 0.0]
                )
                totals[0] += nats
                totals[1] += lost
                totals[2] += packets
        for key, (nats, lost, packets) in links.items():
            self._step(key, nats, lost, packets, now, learn=key[0] not in queued)
        if not self._history or now >= self._history[-1][0] + HISTORY_NS:
            self._history.append((now, self._counts()))
        return self._judge(rows, now)

    def _advance(
        self, row: LossCounters, now: int
    ) -> Iterable[tuple[Direction, float, float, float]]:
        """Take one path's row; gives (direction, nats, lost, packets) of what is evidence."""
        rules = self.rules
        absent = (row.rx_lost, row.tx_lost)
        if row.rx_bitmap != FULL or row.tx_bitmap != FULL:
            newer = 1 if row.interval_ns >= ALONE_NS and not row.trains else TRAIN
            absent = (
                absent[0] + holes(row.rx_bitmap, newer), absent[1] + holes(row.tx_bitmap, newer)
            )  # fmt: skip
        path = self._paths.get(row.path)
        if path is None:
            self._paths[row.path] = PathLoss(row, absent)
            return
        old, path.row = path.row, row
        before, path.absent = path.absent, absent
        for half in path.halves:
            half.before = half.now
        if row.outage or self._gap_ns == now:
            path.settled_ns = now + rules.settle_ns + (REORDER + 2) * row.interval_ns
        if path.anew:
            path.anew = False
            return
        if now < path.settled_ns or row.sent < old.sent or row.received < old.received:
            return
        queued = row.queue_ns > rules.queue_ns
        # For the place, also while its link's other paths have one, and until a reading after it.
        behind = queued or old.queue_ns > rules.queue_ns or row.link in self._filled
        lost_rx, lost_tx = max(0, absent[0] - before[0]), max(0, absent[1] - before[1])
        seen = (row.received - old.received + lost_rx, row.sent - old.sent)
        for way, lost, packets in ((RX, lost_rx, seen[0]), (TX, lost_tx, seen[1])):
            half = path.halves[way]
            if not lost and not queued:
                nats = -packets * self._cost
                if not half.cusum.value and not half.blamed:
                    # Nearly always; what is below would find the same, in four times as long.
                    half.count(0.0, packets, queued=behind)
                    half.cusum.quiet(now)
                    yield way, nats, lost, packets
                    continue
            elif queued:
                nats = rules.congested.nats(lost, packets)
            else:
                nats = self._link(row.link, way).baseline.nats(rules.idle, lost, packets)
            half.count(lost, packets, queued=behind)
            if not half.cusum.step(self._path_test, nats, lost, packets, now):
                half.blamed = ""
            yield way, nats, lost, packets

    def _link(self, index: int, way: Direction) -> LinkLoss:
        key = (index, way)
        if key not in self._links:
            self._links[key] = LinkLoss(BaselineRate(self.rules.idle.normal, self.rules.usual))
        return self._links[key]

    def _step(
        self,
        key: tuple[int, Direction],
        nats: float,
        lost: float,
        packets: float,
        now: int,
        *,
        learn: bool,
    ) -> None:
        link, cusum = self._link(*key), self._link(*key).cusum
        sick, before = cusum.sick, (cusum.events, cusum.exposure)
        if nats > 0 and not cusum.started:
            link.before = {i: (p.halves[RX].before, p.halves[TX].before) for i, p in self._items()}
        test = self._relapse if now < link.relapse_ns else self.rules.idle
        if not cusum.step(test, nats, lost, packets, now):
            if link.blamed:
                self._clear_fault(*key)
            link.blamed = ""
            if sick:
                link.relapse_ns = now + RELAPSE_NS
        if learn and not sick and not cusum.started:
            # Whatever there was led to no verdict: such are the link's losses when it is well.
            link.baseline.learn(before[0] + lost, before[1] + packets)

    def _clear_fault(self, index: int, way: Direction) -> None:
        """What a link's paths lost while the link was to blame accuses none of them alone."""
        for path in self._paths.values():
            if path.row.link == index:
                path.halves[way].cusum, path.halves[way].blamed = Cusum(), ""

    def _counts(self) -> dict[int, BothWays]:
        return {i: (p.halves[RX].now, p.halves[TX].now) for i, p in self._items()}

    def _items(self) -> list[tuple[int, PathLoss]]:
        return list(self._paths.items())

    def _judge(self, rows: Sequence[LossCounters], now: int) -> LossVerdict:
        links: dict[int, str] = {}
        paths: dict[int, str] = {}
        blames: list[Blame] = []
        at: dict[int, Blame] = {}
        hosts: set[str] = set()
        for (index, way), link in sorted(self._links.items()):
            if not link.cusum.sick:
                link.asked = 0.0
            elif link.cusum.events > (DOUBT_AGAIN if link.blamed else ASK_MORE) * link.asked:
                link.asked = link.cusum.events
                found = self._explain(rows, link.before)
                told = link.place if link.blamed else None
                link.settle(self._doubted(self._of_link(index, rows, found)) if found else None)
                if link.blamed:
                    link.before, link.asked_at = link.asked_at, self._counts()
                else:
                    link.asked_at = link.before
                if not link.blamed and link.place is not None and link.place.kind is Kind.HOST:
                    blames += self._host(link.place, rows, now)
                if not link.blamed:
                    link.blamed = self._link_at_fault(index, way, rows, link, found)
                elif self._sure(index, rows, found) < 1 - self.rules.confidence:
                    link.blamed = ""
                new = link.place is not None and (
                    told is None or told.element != link.place.element
                )
                blames += [link.place] if link.blamed and link.place and new else []
            if link.blamed:
                links.setdefault(index, link.blamed)
                if link.place is not None:
                    at.setdefault(index, link.place)
            elif link.cusum.sick and link.place is not None and link.place.kind is Kind.HOST:
                hosts.add(link.place.element)
        for name in self._host_since.keys() - hosts:
            del self._host_since[name]
            self._lossy_hosts.pop(name, None)
        for row in rows:
            rx, tx = halves = self._paths[row.path].halves
            if not (rx.cusum.sick or tx.cusum.sick or rx.blamed or tx.blamed):
                continue  # nearly always
            for way, half in zip(_WAYS, halves, strict=True):
                if half.cusum.sick and not half.blamed and row.link not in links:
                    half.blamed = self._path_at_fault(row, way, half)
                    if half.blamed:
                        self._place_at = now + PLACE_NS
                if half.blamed and row.link not in links:
                    paths.setdefault(row.path, half.blamed)
        if not paths:
            self._place_at, self._elsewhere = None, []
            self._placed.clear()
        elif self._place_at is not None and now >= self._place_at:
            self._place_at = now + PLACE_AGAIN_NS
            blames += self._place(rows, paths, now)
        hosts_now = self._lossy_hosts
        apart = [b for b in self._elsewhere if not any(is_part_of(h, b) for h in hosts_now)]
        return LossVerdict(links, paths, tuple(blames), at, (*hosts_now.values(), *apart))

    def _host(self, at: Blame, rows: Sequence[LossCounters], now: int) -> list[Blame]:
        """A host that loses on all rails, also since that was found; gives what is new."""
        name = at.element
        if name not in self._host_since:
            self._host_since[name] = now, self._counts()
        since, before = self._host_since[name]
        if now - since < HOST_LASTS_NS // 2:
            # What it lost until then may have been a burst, and the losses that go on another's.
            self._host_since[name] = since, self._counts()
        if now - since < HOST_LASTS_NS:
            return []
        found = [self._doubted(one) for one in self._explain(rows, before)]
        if (Kind.HOST, name) not in {(one.kind, one.element) for one in found}:
            return []
        told = name in self._lossy_hosts or (Kind.HOST, name) in self._placed
        self._lossy_hosts[name] = at
        return [] if told else [at]

    def _place(
        self, rows: Sequence[LossCounters], paths: Mapping[int, str], now: int
    ) -> list[Blame]:
        """Where the losses of the paths that are worse alone come from; gives what is new.

        A host that lost in a burst loses no more, and the losses since may be another's.
        """
        sick = [h.cusum for i in paths for h in self._paths[i].halves if h.cusum.sick]
        if not sick:
            return []
        began = min(cusum.since_ns for cusum in sick)
        at = [counts for when, counts in self._history if when <= began] or [{}]
        lately = [counts for when, counts in self._history if when <= now - PLACE_NS] or [{}]
        still = {(b.kind, b.element) for b in self._explain(rows, lately[-1])}
        answers = [
            self._doubted(blame)
            for blame in self._explain(rows, at[-1])
            if blame.kind is not Kind.HOST or (blame.kind, blame.element) in still
        ]
        self._elsewhere = [b for i, b in enumerate(answers) if i == 0 or b.kind is not Kind.UNKNOWN]
        told = self._placed | {(Kind.HOST, name) for name in self._lossy_hosts}
        new = [b for b in self._elsewhere if (b.kind, b.element) not in told]
        self._placed |= {(b.kind, b.element) for b in new}
        return new

    def _doubted(self, blame: Blame) -> Blame:
        """What one pair of ports alone tells: it loses. At which end, only base rates would say.

        Nor is that pair blamed alone by a few packets that others did not lose.
        """
        least = {Kind.PATH: self.rules.confidence_path, Kind.LINK: 0.0}
        sure = blame.confidence >= least.get(blame.kind, self.rules.confidence_shared)
        sure = sure and (blame.pairs >= LEAST_PAIRS or blame.kind is Kind.PATH)
        return blame if sure else replace(blame, kind=Kind.UNKNOWN, element="", way=Way.BOTH)

    def _explain(self, rows: Sequence[LossCounters], before: Mapping[int, BothWays]) -> list[Blame]:
        """Where the losses since ``before`` come from, given that something is sick."""
        flows = []
        for row in rows:
            path = self._paths[row.path]
            own, peer = (self.host, row.rail), (row.peer, row.peer_rail)
            zero = (path.halves[RX].now, path.halves[TX].now)
            for way, start in zip(Direction, before.get(row.path, zero), strict=True):
                seen = path.halves[way].now.since(start)
                ends = (peer, own) if way is RX else (own, peer)
                one = flow(*ends, seen.calm, seen.queued, self.rules)
                if one.ratio > 0 or not row.outage:
                    # What arrived before a path went out does not say that it is well.
                    flows.append(one)
        return locate(flows, topology=self.topology, certain=True, rules=self.rules.places)

    def _link_at_fault(
        self,
        index: int,
        way: Direction,
        rows: Sequence[LossCounters],
        link: LinkLoss,
        found: Sequence[Blame],
    ) -> str:
        """Why the link is worse; empty: it is not it, or not surely yet."""
        if self._sure(index, rows, found) < self.rules.confidence:
            return ""
        calm: dict[str, LossCount] = {}
        queued: dict[str, LossCount] = {}
        for row in rows:
            start = link.before.get(row.path) if row.link == index else None
            if start is not None:
                since = self._paths[row.path].halves[way].now.since(start[way])
                for seen, count in ((calm, since.calm), (queued, since.queued)):
                    seen[row.peer] = seen.get(row.peer, LossCount()).plus(count)
        # What full queues drop is of several peers by their nature: it makes no second witness.
        some = any(count.lost for count in calm.values())
        seen, usual = (calm, link.baseline.rate) if some else (queued, self.rules.congested.normal)
        losers = {peer for peer, count in seen.items() if count.lost > 0}
        if len(losers) < self.rules.min_peers:
            return ""
        if shared_ratio(list(seen.values()), usual) < self.rules.shared:
            return ""
        return lost_text(link.cusum, way, losers)

    def _of_link(self, index: int, rows: Sequence[LossCounters], found: Sequence[Blame]) -> Blame:
        """The answer that is about this link, else the first: two faults have two answers."""
        own = self._own(index, rows)
        return next((blame for blame in found if (blame.kind, blame.element) in own), found[0])

    def _own(self, index: int, rows: Sequence[LossCounters]) -> set[tuple[Kind, str]]:
        """A link and its leaf."""
        port = (self.host, next(row.rail for row in rows if row.link == index))
        return {(Kind.LINK, port_name(port)), (Kind.LEAF, self.topology.leaf(port))}

    def _sure(self, index: int, rows: Sequence[LossCounters], found: Sequence[Blame]) -> float:
        """How likely it is the link or its leaf: this rail is worse either way."""
        elements = self._own(index, rows)
        if all(row.link == index for row in rows):
            # Nor can a host with one rail be told from its link.
            elements.add((Kind.HOST, self.host))
        sure = (sum(p for *e, p in blame.candidates if tuple(e) in elements) for blame in found)
        return max(sure, default=0.0)

    def _path_at_fault(self, row: LossCounters, way: Direction, half: DirectionLoss) -> str:
        """Why one path is worse; empty when its peer loses on other rails as well."""
        same = [p for _, p in self._items() if p.row.peer == row.peer and p.row.link != row.link]
        busy = sum(p.halves[way].cusum.started for p in same)
        if busy * 2 >= max(1, len(same)):
            return ""
        return f"{lost_text(half.cusum, way, {row.peer})} on this path"
