"""A host whose rails are fine, congested, slow or broken: probe stamps and job pages, seeded. Pure.

Written before the verdict was tried on it. Depths of queues are those of `bench.detect.scenario`.
Clocks are apart by seconds and drift by up to 30 ppm. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.detect.scenario import CONGESTED_LOSS, QUEUE_S, log_uniform
from fabricd.delay.condition import Condition
from fabricd.delay.view import PathPlace
from fabricd.probes.stamps import Exchange
from telemetry.statsdir import ProcessPage
from telemetry.statslayout import LATENCY_BUCKETS
from telemetry.statspage import Latency, StatsPage, StatsRail

LINKS, PEERS, RATE = 4, 6, 10
"""Rails of the host, peers of each, exchanges a path and second."""
DRIFT_PPM = 30.0
JITTER_S = 4e-6
START_S, LENGTH_S = 25, 60
SLOW = (1.7, 8.0)
"""Delivery time of a slow rail against its siblings', log-uniform."""
GRAY = (1e-2, 2e-1)
BURST_S, BURST_SHARE = (0.001, 0.05), (0.05, 0.3)
"""Queues that come and go with the steps of training."""

Floats = NDArray[np.float64]


class Kind(StrEnum):
    """What happens to rail 0 (or to all)."""

    QUIET = "quiet"
    BURSTS = "short bursts"
    ROUTE = "another route"
    CLOCK = "clocks stepped or slewed"
    BUSY_HOST = "busy host"
    BUSY_PEER = "busy peer"
    PEER_PORT = "queue at one peer's port"
    LOADED = "carries more than its siblings"
    INCAST = "incast"
    UPLINK = "queue on the way out"
    LAGGING = "queue at the job's peer"
    SLOW = "slow NIC"
    GRAY = "gray loss"


TRUTH = {
    Kind.INCAST: Condition.CONGESTED,
    Kind.UPLINK: Condition.CONGESTED,
    Kind.LAGGING: Condition.CONGESTED,
    Kind.SLOW: Condition.SLOW,
    Kind.GRAY: Condition.BROKEN,
}
"""Of rail 0; the others are fine."""
WAY = {Kind.INCAST: "rx", Kind.UPLINK: "tx", Kind.LAGGING: "tx"}


@dataclass(slots=True)
class _Clock:
    offset: float
    ppm: float
    base: float
    asymmetry: float


@dataclass(slots=True)
class World:
    """One seeded story; `second` makes what is seen in each of its seconds."""

    seed: int
    kind: Kind
    rng: np.random.Generator
    places: list[PathPlace]
    clocks: list[_Clock]
    depth: float
    loss: float
    factor: float
    share: float
    burst: float
    way: str
    now: int = 0
    sent: NDArray[np.int64] = field(init=False)
    lost: NDArray[np.int64] = field(init=False)
    rails: list[list[int]] = field(init=False)
    buckets: list[NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((len(self.places), 2), dtype=np.int64)
        self.lost = np.zeros((len(self.places), 2), dtype=np.int64)
        self.rails = [[0, 0] for _ in range(LINKS)]
        self.buckets = [np.zeros(LATENCY_BUCKETS, dtype=np.int64) for _ in range(LINKS)]

    @classmethod
    def make(cls, seed: int) -> World:
        """The story of a seed."""
        rng = np.random.default_rng([seed, 77])
        kinds = list(Kind)
        # Each condition as often as the others; fine has eight ways to be.
        weights = np.array([1 / 3 if k in WAY else 1 / 8 if k not in TRUTH else 1.0 for k in kinds])
        kind = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        places = [
            PathPlace(link, f"rail{link}", f"h{peer}", f"10.{link}.0.{peer}")
            for link in range(LINKS)
            for peer in range(1, PEERS + 1)
        ]
        clocks = [
            _Clock(rng.uniform(-9, 9), rng.uniform(-DRIFT_PPM, DRIFT_PPM),
                   rng.uniform(5e-6, 40e-6), rng.uniform(-3e-6, 3e-6))
            for _ in places
        ]  # fmt: skip
        return cls(
            seed, kind, rng, places, clocks, log_uniform(rng, QUEUE_S),
            log_uniform(rng, GRAY) if kind is Kind.GRAY else log_uniform(rng, CONGESTED_LOSS),
            log_uniform(rng, SLOW), rng.uniform(*BURST_SHARE), log_uniform(rng, BURST_S),
            str(rng.choice(["rx", "tx"])),
        )  # fmt: skip

    @property
    def struck(self) -> bool:
        """Whether it has begun."""
        return self.now >= START_S

    def second(self) -> dict[int, list[Exchange]]:
        """The exchanges of the next second, by path."""
        if self.now == START_S:
            self._strike()
        out = {i: self._path(i) for i in range(len(self.places))}
        self.now += 1
        return out

    def stalled_ns(self) -> int:
        """For how long the prober did not run in the last second."""
        busy = self.kind is Kind.BUSY_HOST and self.now > START_S
        return round(1e9 * self.rng.uniform(0.03, 0.4)) if busy else 0

    def pages(self) -> list[ProcessPage]:
        """The job's stats page at the end of the last second."""
        struck = self.now > START_S
        typical = 0.04 * self.rng.uniform(0.8, 1.25)
        if struck and self.kind is Kind.BUSY_PEER:
            typical *= self.factor
        rows = []
        for link in range(LINKS):
            count, takes = 40, typical
            lags = struck and link == 0
            if lags and self.kind in (Kind.SLOW, Kind.LAGGING):
                takes *= self.factor
            if lags and self.kind is Kind.LOADED:
                count, takes = 80, takes * 1.9
            ns = (takes * 1e9 * self.rng.lognormal(0, 0.4, count)).astype(np.int64)
            places = np.minimum(np.frexp(ns / 1000)[1], LATENCY_BUCKETS - 1)
            np.add.at(self.buckets[link], places, 1)
            self.rails[link][0] += 500_000 * count
            self.rails[link][1] += int(ns.sum())
            busy = self.rng.random() < (0.9 if takes > 1.3 * typical else 0.5)
            rows.append(
                StatsRail(
                    f"rail{link}", tx_bytes=self.rails[link][0], in_flight_bytes=900_000 * busy,
                    latency=Latency(self.rails[link][1], tuple(self.buckets[link].tolist())),
                )
            )  # fmt: skip
        page = StatsPage(
            1, 5, 6, 1, 1, 0, 0, 0, 0, steer_present=True, failover=True, job="j", rails=tuple(rows)
        )
        return [ProcessPage(Path("/x"), 0, page, alive=True)]

    def _strike(self) -> None:
        if self.kind is Kind.ROUTE:
            for clock in self.clocks[:PEERS:2]:
                clock.base += log_uniform(self.rng, (2e-5, 3e-4))
        if self.kind is Kind.CLOCK:
            for clock in self.clocks[::3]:
                clock.offset += self.rng.choice([-1, 1]) * log_uniform(self.rng, (1e-4, 10.0))
                clock.ppm += self.rng.uniform(-10, 10)

    def _path(self, index: int) -> list[Exchange]:
        rng, clock, place = self.rng, self.clocks[index], self.places[index]
        sent = self.now + np.sort(rng.random(RATE))
        hold = rng.uniform(0, 0.05, RATE)
        queue_out, queue_back = (self._queue(place, way, sent) for way in ("tx", "rx"))
        out = clock.base + clock.asymmetry + rng.exponential(JITTER_S, RATE) + queue_out
        back = clock.base - clock.asymmetry + rng.exponential(JITTER_S, RATE) + queue_back
        drift = clock.offset + clock.ppm * 1e-6 * (sent - START_S)
        there, again = sent + out, sent + out + hold
        kept = self._lose(index, place, queue_out, queue_back)
        stamps = np.stack([sent, there + drift, again + drift + clock.ppm * 1e-6 * hold,
                           again + back])  # fmt: skip
        rows = np.round(stamps * 1e9).astype(np.int64).T[kept]
        zero = 10**12
        return [Exchange._make([*(zero + v for v in row), 0]) for row in rows.tolist()]

    def _lose(self, index: int, place: PathPlace, out: Floats, back: Floats) -> NDArray[np.bool_]:
        """Which exchanges are whole; counts what is lost by direction (rx, tx)."""
        gray = self.kind is Kind.GRAY and self.struck and place.link == 0
        kept = np.ones(RATE, dtype=bool)
        for column, way, queue in ((0, "rx", back), (1, "tx", out)):
            chance = np.where(queue > 0, self.loss, 1e-6) if not gray else np.full(RATE, 1e-6)
            if gray and way == self.way:
                chance[:] = self.loss
            gone = self.rng.random(RATE) < chance
            self.sent[index, column] += RATE
            self.lost[index, column] += int(gone.sum())
            kept &= ~gone
        return kept

    def _queue(self, place: PathPlace, way: str, at: Floats) -> Floats:
        if not self.struck:
            return np.zeros(RATE)
        make = _QUEUES.get(self.kind)
        return make(self, place, way, at) if make else np.zeros(RATE)

    def breathing(self) -> Floats:
        """A queue that stands."""
        return self.depth * self.rng.uniform(0.4, 1.0, RATE)

    def bursts(self, at: Floats) -> Floats:
        """A queue that is there for a share of the time."""
        phase = (at / (self.burst / self.share)) % 1.0
        return np.where(phase < self.share, self.breathing(), 0.0)


def _incast(world: World, place: PathPlace, way: str, _at: Floats) -> Floats:
    here = place.link == 0 and way == WAY[world.kind]
    return world.breathing() if here else np.zeros(RATE)


def _peer_port(world: World, place: PathPlace, way: str, _at: Floats) -> Floats:
    here = place.link == 0 and place.peer == "h2" and way == "tx"
    return world.breathing() if here else np.zeros(RATE)


def _bursts(world: World, _place: PathPlace, _way: str, at: Floats) -> Floats:
    return world.bursts(at)


def _busy_host(world: World, _place: PathPlace, way: str, _at: Floats) -> Floats:
    return world.rng.exponential(1e-3, RATE) if way == "rx" else np.zeros(RATE)


def _busy_peer(world: World, place: PathPlace, way: str, _at: Floats) -> Floats:
    here = place.peer == "h2" and way == "tx"
    return world.rng.exponential(2e-4, RATE) if here else np.zeros(RATE)


_QUEUES: dict[Kind, Callable[[World, PathPlace, str, Floats], Floats]] = {
    Kind.INCAST: _incast,
    Kind.UPLINK: _incast,
    Kind.LAGGING: _peer_port,
    Kind.PEER_PORT: _peer_port,
    Kind.BURSTS: _bursts,
    Kind.BUSY_HOST: _busy_host,
    Kind.BUSY_PEER: _busy_peer,
}
