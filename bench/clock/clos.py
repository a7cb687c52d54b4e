"""A Clos fabric in virtual time: what the estimator says, where the truth is known.

Hosts hang on leaves, leaves on spines, and every packet passes the host's own port and two or four
ports of switches. Parameters, and where they come from:

- 400 Gbit/s ports and packets of 4 KB: 82 ns each. Each egress port is a queue with Poisson
  arrivals of bursts (M/G/1): empty with probability 1 - load, else with an exponential wait of mean
  burst / 2 / (1 - load), which is what Pollaczek and Khinchine give for bursts of like size. Its
  wait ``GAP_NS`` later is that less the gap plus what arrived meanwhile, so a train's packets see
  queues that are alike but not the same. Probes with a traffic class of their own, served first
  (``[probe] dscp``), wait for the rest of the packet that is being sent, and for nothing else.
- Clocks: up to 30 ppm off (a crystal's tolerance over temperature), random-walk frequency noise of
  1 ppb/√s, both as the live part has them.
- Stamps: hardware's, in steps of 8 ns (ConnectX and E810 count at 125 MHz to 1 GHz).
- Unlike ways: each port adds a constant of its own, normal with 2 ns, to what passes: lengths of
  traces, FEC alignment, and cables that differ by 40 cm. One direction's path differs from the
  other's by what its ports do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.clock.least_squares import Graph
from clocksync.pair.estimator import PairEstimator
from clocksync.pair.model import SECOND, Pair
from clocksync.pair.trains import Packets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PACKET_NS = 4096 * 8 / 400
GAP_NS = 600
"""Between the packets of a train: what a NIC takes to be given the next one."""
TRAINS_HZ = 100
WIRE_NS = 1000.0
"""Of a port: its switch's pipeline and its cable."""
PORT_BIAS_NS = 2.0
STAMP_STEP_NS = 8
DRIFT = 30e-6
WANDER = 1e-9
HOSTS_A_LEAF = 32
SPINES = 8


@dataclass(frozen=True, slots=True)
class Load:
    """Of every port."""

    share: float
    """Of the time that it sends."""
    burst: float = 1.0
    """Packets that arrive together."""
    own_class: bool = False
    """Whether probes are served before the load."""

    def waits(self, rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        """Of the second and the third packet of so many trains at one port, ns."""
        if self.share <= 0:
            return np.zeros(count), np.zeros(count)
        if self.own_class:
            rest = rng.uniform(0, PACKET_NS, (2, count)) * (rng.random((2, count)) < self.share)
            return rest[0], rest[1]
        size = self.burst * PACKET_NS
        busy = rng.random(count) < self.share
        first = busy * rng.exponential(size / 2 / (1 - self.share), count)
        came = rng.poisson(self.share * GAP_NS / size, count)
        # What came within the gap did so at any time of it.
        later = np.maximum(0.0, first - GAP_NS) + np.maximum(
            0.0, came * size - rng.uniform(0, GAP_NS, count)
        ) * (came > 0)
        return first, later


class Clocks:
    """Of all hosts: how far each is ahead of true time."""

    def __init__(self, rng: np.random.Generator, hosts: int, seconds: float) -> None:
        steps = int(seconds * 50) + 2
        self._at = np.arange(steps) / 50
        rate = rng.uniform(-DRIFT, DRIFT, (hosts, 1)) + np.cumsum(
            rng.normal(0, WANDER / np.sqrt(50), (hosts, steps)), axis=1
        )
        start = rng.uniform(-1e6, 1e6, (hosts, 1))
        self._ahead = start + np.cumsum(rate, axis=1) * 1e9 / 50

    def ahead(self, host: int, true_s: Floats | float) -> Floats:
        """In nanoseconds, at true times in seconds."""
        out: Floats = np.interp(true_s, self._at, self._ahead[host])
        return out


def regular_graph(rng: np.random.Generator, hosts: int, degree: int) -> list[tuple[int, int]]:
    """Pairs such that each host is in ``degree`` of them: as many random rounds of a circle."""
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < hosts * degree // 2:
        order = rng.permutation(hosts)
        for one, other in zip(order, np.roll(order, -1), strict=True):
            pair = (int(min(one, other)), int(max(one, other)))
            if len(pairs) < hosts * degree // 2:
                pairs.add(pair)
    return sorted(pairs)


class Fabric:
    """Hosts, their clocks, and a mesh of paths between them."""

    def __init__(self, seed: int, hosts: int, degree: int, load: Load, seconds: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.load, self.hosts = load, hosts
        self.clocks = Clocks(self.rng, hosts, seconds)
        self.pairs = regular_graph(self.rng, hosts, degree)
        self.estimators = [PairEstimator() for _ in self.pairs]
        leaves = -(-hosts // HOSTS_A_LEAF)
        bias = self.rng.normal(0, PORT_BIAS_NS, (hosts, 2))
        self._ports = bias, self.rng.normal(0, PORT_BIAS_NS, (leaves, SPINES, 2))
        self._spine = self.rng.integers(0, SPINES, (len(self.pairs), 2))
        self._seq = 0
        self.now_s = 0.0

    def _way(self, source: int, target: int, spine: int) -> tuple[float, int]:
        """What a packet's way takes without queues, and through how many ports."""
        host, leaf = self._ports
        bias, ports = host[source, 0] + host[target, 1], 2
        here, there = source // HOSTS_A_LEAF, target // HOSTS_A_LEAF
        if here != there:
            bias, ports = bias + leaf[here, spine, 0] + leaf[there, spine, 1], 4
        return ports * WIRE_NS + float(bias), ports

    def _packets(self, source: int, target: int, spine: int, seconds: float) -> Packets:
        """Second and third packets of the trains of one direction; the first says nothing."""
        count = int(seconds * TRAINS_HZ)
        wire, ports = self._way(source, target, spine)
        sent_s = self.now_s + (np.arange(count) + self.rng.random(count)) / TRAINS_HZ
        delay = np.full((count, 2), wire)
        for _ in range(ports):
            for column, wait in enumerate(self.load.waits(self.rng, count)):
                delay[:, column] += wait
        # The third waits behind the second.
        delay[:, 1] = np.maximum(delay[:, 1], delay[:, 0] - GAP_NS)
        left_s = (sent_s[:, None] + np.array([0, GAP_NS]) * 1e-9).reshape(-1)
        came_s = left_s + delay.reshape(-1) * 1e-9
        seq = self._seq + np.arange(count)[:, None] * 4 + np.array([2, 3])
        self._seq += 4 * count
        return Packets(
            seq.reshape(-1), np.tile([2, 3], count),
            self._stamp(source, left_s), self._stamp(target, came_s),
        )  # fmt: skip

    def _stamp(self, host: int, true_s: Floats) -> Ints:
        exact = true_s * 1e9 + self.clocks.ahead(host, true_s)
        out: Ints = (np.floor(exact / STAMP_STEP_NS) * STAMP_STEP_NS).astype(np.int64)
        return out

    def run(self, seconds: float) -> list[tuple[Pair | None, float]]:
        """Let so much time pass; of each pair what is estimated then, and its error in ns."""
        batches = []
        for (one, other), (there, back) in zip(self.pairs, self._spine, strict=True):
            out = self._packets(one, other, int(there), seconds)
            batches.append((out, self._packets(other, one, int(back), seconds)))
        self.now_s += seconds
        found = []
        for (one, other), estimator, (out, back) in zip(
            self.pairs, self.estimators, batches, strict=True
        ):
            estimator.feed(out, back)
            now = self._shown(one)
            pair = estimator.estimate(now)
            error = (
                np.nan if pair is None else pair.base_ns + pair.apart(now) - self.apart(one, other)
            )
            found.append((pair, float(error)))
        return found

    def _shown(self, host: int) -> int:
        """What a host's clock shows."""
        return round(self.now_s * SECOND + float(self.clocks.ahead(host, self.now_s)))

    def apart(self, one: int, other: int) -> float:
        """The truth: the other's clock minus the one's, now."""
        here, there = (float(self.clocks.ahead(x, self.now_s)) for x in (one, other))
        return there - here

    def graph(self, found: list[tuple[Pair | None, float]]) -> Graph:
        """The mesh of those errors: its solution is the error that is left of each clock.

        The equations are linear, so solving for errors is solving for offsets, and floats of
        nanoseconds do not have to hold clocks that are seconds apart.
        """
        known = [(ends, pair, error) for ends, (pair, error) in
                 zip(self.pairs, found, strict=True) if pair is not None]  # fmt: skip
        return Graph(
            self.hosts,
            np.array([ends[0] for ends, _, _ in known], dtype=np.intp),
            np.array([ends[1] for ends, _, _ in known], dtype=np.intp),
            np.array([error for _, _, error in known]),
            np.array([pair.weight(self._shown(ends[0])) for ends, pair, _ in known]),
        )
