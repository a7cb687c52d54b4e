"""The path table of one watched host over the whole story, as its prober would fill it in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.detect import fleet
from bench.detect.scenario import (
    BACKGROUND_STALLS,
    BASE_LOSS,
    DELAY_S,
    HOSTS,
    JITTER_S,
    RAILS,
    REORDER,
    Port,
    Scenario,
    log_uniform,
)
from bench.detect.traffic import (
    BITS,
    Floats,
    FlowLog,
    Ints,
    Seen,
    Spans,
    awake,
    due_between,
    in_spans,
    lateness,
    process,
    within,
)
from fabricd.detect.mesh import PathSpec, train_rate

LINK_INTERVAL_S = 0.01
TRAIN_S = 1 / train_rate(100, RAILS, HOSTS - 1)
TRAIN = 3
NEVER = -1.0
QUIET_STALL_S = 0.05
"""Less than half of the shortest interval of a slow path: no miss."""


class Noise:
    """What every port and host suffers all the time; the same whoever looks."""

    def __init__(self, story: Scenario) -> None:
        self._story = story
        self._loss: dict[tuple[Port, str], float] = {}
        self._stalls: dict[int, list[tuple[float, float]]] = {}

    def loss(self, source: Port, target: Port) -> float:
        """The chance of one packet of that flow."""
        return self._of(source, "tx") + self._of(target, "rx")

    def _of(self, port: Port, way: str) -> float:
        key = (port, way)
        if key not in self._loss:
            rng = np.random.default_rng([self._story.seed, 1, *port, way == "tx"])
            self._loss[key] = log_uniform(rng, BASE_LOSS)
        return self._loss[key]

    def stalls(self, host: int) -> list[tuple[float, float]]:
        """When the host's prober does not run, for whatever reason."""
        if host not in self._stalls:
            rng = np.random.default_rng([self._story.seed, 2, host])
            length = self._story.length
            begins = rng.uniform(0, length, rng.poisson(BACKGROUND_STALLS * length))
            spans = [(float(b), float(b + log_uniform(rng, (0.002, 0.05)))) for b in begins]
            self._stalls[host] = sorted([*spans, *self._story.stalls.get(host, [])])
        return self._stalls[host]


def phase(seed: int, source: Port, target: Port, interval: float) -> float:
    """The slot of a pair of hosts is the same on every rail, and both ways."""
    pair = sorted((source[0], target[0]))
    rng = np.random.default_rng([seed, 6, *pair, source[1] == target[1]])
    return float(rng.uniform(0, interval))


@dataclass(slots=True)
class PathTable:
    """Rows of one path at each moment; times in seconds, −1: never."""

    spec: PathSpec
    interval: float
    last: Floats
    said: Floats
    """When that packet was sent."""
    due: Floats
    """When the first single packet after that is due to be."""
    awake: Floats
    """By ``said`` the peer's prober had run without a gap for so long."""
    acked: Floats
    """When the newest packet was sent that the peer says it heard."""
    sent: Ints
    received: Ints
    rx_lost: Ints
    tx_lost: Ints
    rx_missed: Ints
    tx_missed: Ints
    rx_bitmap: Ints
    tx_bitmap: Ints
    queue: Floats


class PathSim:
    """One path of the watched host: two flows."""

    def __init__(
        self, story: Scenario, noise: Noise, host: int, spec: PathSpec, paths: int
    ) -> None:
        self.spec = spec
        self.interval = LINK_INTERVAL_S * paths
        self.late = lateness(self.interval, LINK_INTERVAL_S)
        self._story, self._noise = story, noise
        self._own: Port = (host, spec.link)
        self._peer: Port = (fleet.number(spec.peer), spec.peer_rail)
        self.into = self._flow(self._peer, self._own)
        self.out = self._flow(self._own, self._peer)

    def _flow(self, source: Port, target: Port) -> FlowLog:
        story = self._story
        rng = np.random.default_rng([story.seed, 3, *source, *target])
        pace = np.arange(self._phase(source, target), story.length, self.interval)
        sent = pace + rng.uniform(0, 1e-4, len(pace))
        if self.spec.clock:
            trains = np.arange(rng.uniform(0, TRAIN_S), story.length, TRAIN_S)
            trains = (trains[:, None] + np.arange(TRAIN) * 5e-6).reshape(-1)
            sent = np.sort(np.concatenate([sent, trains]))
        silent = [*self._noise.stalls(source[0]), *self._gone(source[0]), *self._gone(target[0])]
        sent = sent[~in_spans(sent, silent)]
        chance = np.full(len(sent), self._noise.loss(source, target))
        arrival = sent + DELAY_S + rng.exponential(JITTER_S, len(sent))
        for fault in story.faults:
            if fault.hits(source, target):
                hit = in_spans(sent, [(fault.begin, fault.end)])
                chance[hit] = 1 - (1 - chance[hit]) * (1 - fault.loss)
                arrival[hit] += fault.queue
        if story.reorders:
            late = rng.random(len(sent)) < REORDER
            arrival[late] += rng.uniform(0, 5e-5, int(late.sum()))
        heard = rng.random(len(sent)) >= chance
        return FlowLog.make(sent, heard, process(arrival, heard, self._noise.stalls(target[0])))

    def _phase(self, source: Port, target: Port) -> float:
        return phase(self._story.seed, source, target, self.interval)

    def _gone(self, host: int) -> Spans:
        return [self._story.gone[host]] if host in self._story.gone else []

    def news(self) -> Floats:
        """When the prober would wake the daemon: misses called, and their ends."""
        out = []
        for flow, judge in ((self.into, self._own[0]), (self.out, self._peer[0])):
            done = np.append(np.sort(flow.at[np.isfinite(flow.at)]), self._story.length)
            gap = np.diff(done)
            slot = self._phase(self._own, self._peer)
            for index in np.flatnonzero(gap > self.late):
                first = slot + (np.floor((done[index] - slot) / self.interval) + 1) * self.interval
                calls = first + np.arange(7) * self.interval + self.late
                calls = calls[calls < done[index + 1]] + 1e-4
                if not len(calls):
                    continue
                for begin, end in self._noise.stalls(judge):
                    calls[(calls >= begin) & (calls < end)] = end + 1e-4
                # The peer's report travels at once; ours is here.
                out += [calls + (0.0 if flow is self.into else 2e-4), done[index + 1 : index + 2]]
        return np.concatenate(out) + 1e-5 if out else np.zeros(0)

    def table(self, moments: Floats) -> PathTable:
        """The rows at each of the moments, which are sorted."""
        own_gaps, peer_gaps = self._noise.stalls(self._own[0]), self._noise.stalls(self._peer[0])
        rx = self.into.seen(moments)
        rx_missed = self._missed(rx.last, moments, own_gaps, self._own[0])
        # What the peer told in the packet that came last; when it misses, it tells at once.
        told = np.where(rx.last >= 0, rx.sent_at, 0.0)
        reports = (moments - told < 2 * self.interval) & (rx_missed == 0)
        told = np.where(reports, np.maximum(told, moments - 4 * DELAY_S), told)
        tx = self.out.seen(told)
        tx_missed = self._missed(tx.last, told, peer_gaps, self._peer[0])
        since = np.where(tx.last >= 0, tx.last, told)
        stalled = within(own_gaps, since, moments)
        owed = np.floor((moments - since - stalled - self.late) / self.interval).astype(np.int64)
        tx_missed = np.minimum(tx_missed, np.where(stalled > 0, np.maximum(owed, 0), tx_missed))
        sent = np.searchsorted(self.out.sent, moments, side="right").astype(np.int64)
        lately = np.searchsorted(self.out.sent, moments - self.late / 2, side="right")
        tx_missed = np.minimum(tx_missed, np.maximum(0, lately - (tx.highest + 1)))
        return PathTable(
            self.spec, self.interval, rx.last, rx.sent_at, self._due(rx.sent_at),
            awake([*peer_gaps, *self._gone(self._peer[0])], rx.sent_at), tx.sent_at, sent,
            rx.received, rx.lost, _rising(tx), rx_missed, tx_missed, rx.bitmap, tx.bitmap,
            self._queue(moments),
        )  # fmt: skip

    def _missed(self, last: Floats, now: Floats, gaps: Spans, judge: int) -> Ints:
        known = last >= 0
        for _, end in self._gone(judge):
            known &= (last >= end) | (now < end)  # a new life has heard nobody yet
        until = now - self.late - within(gaps, last, now)
        begin = self._phase(self._own, self._peer)
        return np.where(known, due_between(last, until, begin, self.interval), 0)

    def _due(self, said: Floats) -> Floats:
        begin = self._phase(self._peer, self._own)
        return begin + (np.floor((said - begin) / self.interval) + 1) * self.interval

    def _queue(self, moments: Floats) -> Floats:
        total = np.zeros(len(moments))
        for fault in self._story.faults:
            for flow in ((self._peer, self._own), (self._own, self._peer)):
                if fault.queue and fault.hits(*flow):
                    # The row keeps the last round trip until the next one.
                    span = (fault.begin, fault.end + self.interval)
                    total += in_spans(moments, [span]) * fault.queue
        return total


def _rising(seen: Seen) -> Ints:
    return np.maximum.accumulate(seen.lost) if len(seen.lost) else seen.lost


def is_quiet(story: Scenario, noise: Noise, host: int, spec: PathSpec) -> bool:
    """Whether nothing is lost or missed on a path, so that `quiet_table` says all of it.

    A slow path of two hosts that stall for less than its packets are apart, and whose base loss
    takes none of its few packets.
    """
    peer = fleet.number(spec.peer)
    ports = ((host, spec.link), (peer, spec.peer_rail))
    if spec.clock or story.reorders or {host, peer} & story.gone.keys():
        return False
    if any(f.hits(*ports) or f.hits(*reversed(ports)) for f in story.faults):
        return False
    if any(end - begin > QUIET_STALL_S for h in (host, peer) for begin, end in noise.stalls(h)):
        return False
    rng = np.random.default_rng([story.seed, 4, *ports[0], *ports[1]])
    lost = (noise.loss(*ports) + noise.loss(*reversed(ports))) * story.length * 10
    return bool(rng.random() > lost)


def quiet_table(
    noise: Noise, host: int, spec: PathSpec, paths: int, moments: Floats, seed: int
) -> PathTable:
    """Rows of a quiet path: what its ends do not send or read in time, they do a moment later."""
    interval = LINK_INTERVAL_S * paths
    peer = fleet.number(spec.peer)
    begin = phase(seed, (host, spec.link), (peer, spec.peer_rail), interval)
    sent = np.arange(begin, float(moments[-1]) + interval, interval)
    sent = sent[~in_spans(sent, noise.stalls(peer))]
    everything = np.ones(len(sent), dtype=bool)
    done = process(sent + DELAY_S, everything, noise.stalls(host))
    count = np.searchsorted(done, moments, side="right").astype(np.int64)
    newest = np.maximum(count - 1, 0)
    last = np.where(count > 0, done[newest], NEVER)
    said = np.where(count > 0, sent[newest], NEVER)
    zero = np.zeros(len(moments), dtype=np.int64)
    full = np.full(len(moments), (1 << BITS) - 1, dtype=np.int64)
    return PathTable(
        spec, interval, last, said, said + interval, awake(noise.stalls(peer), said), last, count,
        count, zero, zero, zero, zero, full, full, np.zeros(len(moments)),
    )  # fmt: skip
