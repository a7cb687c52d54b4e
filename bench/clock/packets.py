"""Hosts of a mesh in virtual time, with the packets: estimators and cores as they are shipped.

Each way of a path has a delay of its own, a scatter of stamps, and a queue as it is told: none, one
that some trains meet, or one that stands and moves like that of a TCP flow (a sawtooth), which next
to no packet escapes. Ways may be as unlike as they like: half the round trip is what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.clock.oscillator import WANDER, Oscillator
from bench.clock.world import STEP_NS, Node, World
from clocksync.pair.estimator import PairEstimator
from clocksync.pair.model import SECOND
from clocksync.pair.trains import Ints, Packets

Floats = NDArray[np.float64]
TRAINS_HZ = 100
GAP_NS = 8000
"""Between the packets of a train, from software."""
JITTER_NS = 15.0
"""Of stamps: a quiet machine's."""
BATCH_NS = STEP_NS
FIT_NS = SECOND // 4
LOOK_NS = SECOND
"""So long a clock service may take to see that a peer has begun another life."""


@dataclass(slots=True)
class Way:
    """One direction of a path."""

    delay_ns: float
    share: float = 0.0
    """Of the trains that meet a queue."""
    queue_ns: float = 40_000.0
    """Its mean."""
    standing_ns: float = 0.0
    """0, or the top of a queue that stands."""
    escape: float = 0.02
    """Share of the packets that escape it."""

    def delays(self, rng: np.random.Generator, sent_ns: Ints) -> Floats:
        """Shape of ``sent_ns``: (trains, 2)."""
        count = len(sent_ns)
        out: Floats = self.delay_ns + np.abs(rng.normal(0, JITTER_NS, (count, 2)))
        if self.share:
            met = rng.random((count, 1)) < self.share
            out += met * (rng.exponential(self.queue_ns, (count, 1))
                          + rng.exponential(self.queue_ns / 2, (count, 2)))  # fmt: skip
        if self.standing_ns:
            # Drained to a half and filled again, three times a second.
            saw = 0.5 + 0.5 * (sent_ns % (SECOND // 3)) / (SECOND // 3)
            stood = rng.random((count, 1)) >= self.escape
            out += stood * (self.standing_ns * saw + rng.exponential(2000, (count, 2)))
        # Nobody overtakes.
        out[:, 1] = np.maximum(out[:, 1], out[:, 0] - GAP_NS)
        return out


class PacketWorld(World):
    """See `World`; lines of paths come from packets."""

    def __init__(
        self, seed: int, hosts: int, pairs: Iterable[tuple[int, int]], *,
        delays_ns: tuple[float, float] = (1000.0, 1010.0), wander: float = WANDER,
        silence_ns: int = SECOND, priority: Callable[[int], int] = lambda _: 100,
    ) -> None:  # fmt: skip
        """Args: ``delays_ns``: each way's delay is drawn from between them."""
        super().__init__(
            seed, hosts, pairs, wander=wander, silence_ns=silence_ns, priority=priority
        )
        self.delays_ns = delays_ns
        self.ways = {
            (path, way): Way(float(self.rng.uniform(*delays_ns)))
            for path in range(len(self.pairs)) for way in (0, 1)
        }  # fmt: skip
        self.estimators: dict[tuple[int, int], PairEstimator] = {
            (host, path): PairEstimator() for host in self.nodes for path, _, _ in self.ends[host]
        }
        self._came: dict[tuple[int, int], list[tuple[Packets, Packets]]] = {}
        self._sent_ns = 0
        self._seq = 0
        self._resets: list[tuple[int, int, int]] = []
        """When, of which host and path."""

    def _another(self, host: int) -> None:
        for path, peer, _ in self.ends[host]:
            self._came.pop((host, path), None)
            self.estimators[host, path] = PairEstimator()
            self._resets.append((self.now_ns + int(self.rng.integers(LOOK_NS)), peer, path))

    def restart(self, host: int) -> None:
        """As of `World`; peers' services see it within a second."""
        self._send()
        super().restart(host)

    def again(self, host: int) -> None:
        """As of `World`."""
        super().again(host)
        for path, _, _ in self.ends[host]:
            self.estimators[host, path] = PairEstimator()

    def step_clock(self, host: int, ns: int) -> None:
        """As of `World`; nobody but the host is told."""
        self._send()
        super().step_clock(host, ns)

    def begin_anew(self, host: int) -> None:
        """As of `World`."""
        node = self.nodes[host]
        node.core.stepped(node.clock.raw(self.now_ns))
        node.line, node.whose = None, None
        for path, _, _ in self.ends[host]:
            self.estimators[host, path].reset()

    def hidden_step(self, host: int, ns: int) -> None:
        """The clock is set and nobody is told."""
        self._send()
        self.nodes[host].clock.step(ns)

    def _arrive(self) -> None:
        if self.now_ns - self._sent_ns >= BATCH_NS:
            self._send()
        due = [reset for reset in self._resets if reset[0] <= self.now_ns]
        for reset in due:
            self._resets.remove(reset)
            _, host, path = reset
            self.estimators[host, path].reset()
            self.nodes[host].core.drop(path)

    def _send(self) -> None:
        """All packets since the last call; both ends get them."""
        since, self._sent_ns = self._sent_ns, self.now_ns
        count = (self.now_ns - since) * TRAINS_HZ // SECOND
        if not count:
            return
        for path, (one, other) in enumerate(self.pairs):
            if path in self.cut or not (self.nodes[one].up and self.nodes[other].up):
                continue
            clocks = self.nodes[one].clock, self.nodes[other].clock
            there = self._packets(self.ways[path, 0], *clocks, since, count)
            back = self._packets(self.ways[path, 1], *clocks[::-1], since, count)
            for host, pair in ((one, (there, back)), (other, (back, there))):
                self._came.setdefault((host, path), []).append(pair)
                self.nodes[host].heard[path] = self.now_ns

    def _packets(
        self, way: Way, source: Oscillator, target: Oscillator, since: int, count: int
    ) -> Packets:
        begin = np.sort(self.rng.integers(since, self.now_ns, count))
        sent = begin[:, None] + np.array([0, GAP_NS])
        heard = sent + np.rint(way.delays(self.rng, sent)).astype(np.int64)
        seq = self._seq + np.arange(count)[:, None] * 4 + np.array([2, 3])
        self._seq += 4 * count
        return Packets(
            seq.reshape(-1), np.tile([2, 3], count), source.raws(sent.reshape(-1)),
            target.raws(heard.reshape(-1)),
        )  # fmt: skip

    def _estimate(self, host: int, node: Node) -> None:
        now = node.clock.raw(self.now_ns)
        for path, peer, _ in self.ends[host]:
            estimator = self.estimators[host, path]
            for out, back in self._came.pop((host, path), ()):
                estimator.feed(out, back)
            if self.now_ns < node.fits.get(path, 0):
                continue
            node.fits[path] = self.now_ns + FIT_NS
            steps = estimator.steps
            pair = estimator.estimate(now)
            # As `fabricd.clock.service` does.
            if estimator.steps != steps and node.core.path_stepped(path, now):
                self.begin_anew(host)
                return
            if pair is not None or estimator.doubt:
                node.core.estimate(path, peer, pair)
