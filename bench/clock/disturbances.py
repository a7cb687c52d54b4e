"""What befalls a mesh: hosts that come and go, divisions, clocks that are set, queues.

`Stage` plays disturbances on a world at random moments, and undoes them; `Checker` reads pages at
random moments meanwhile and holds each against the truth.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.clock.packets import PacketWorld
from bench.clock.world import HALF_RTT_NS, World
from clocksync.pair.model import SECOND


@dataclass(slots=True)
class Checker:
    """Reads pages: each host's so many times a second, at moments that nobody chose."""

    world: World
    seed: int
    hertz: float
    checks: int = 0
    silent: int = 0
    """Pages that said no time."""
    missed: list[tuple[float, int, float, float]] = field(default_factory=list)
    """True time in s, host, error, bound."""
    bounds: list[float] = field(default_factory=list)
    used: float = 0.0
    """The largest part of its bound that an error was."""
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng((self.seed, 1))

    def __call__(self, first_ns: int, last_ns: int) -> None:
        """All reads within a tick."""
        nodes = self.world.nodes
        count = self._rng.poisson(len(nodes) * self.hertz * (last_ns - first_ns) / SECOND)
        hosts = list(nodes)
        for at in self._rng.integers(first_ns, last_ns, count).tolist():
            host = hosts[int(self._rng.integers(len(hosts)))]
            node = nodes[host]
            # A reference is right by definition.
            if not node.up or node.core.election.is_reference:
                continue
            found = self.world.look(host, at)
            if found is None:
                self.silent += 1
                continue
            error, bound = found
            self.checks += 1
            self.bounds.append(bound)
            self.used = max(self.used, abs(error) / bound)
            if abs(error) > bound:
                self.missed.append((at / SECOND, host, error, bound))


class Stage:
    """A world, and what happens to it."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = np.random.default_rng((seed, 2))
        self.cuts: list[set[int]] = []
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def later(self, low_s: float, high_s: float, what: Callable[[], None]) -> None:
        """Do it after some time."""
        due = self.world.now_ns + int(self.rng.uniform(low_s, high_s) * SECOND)
        self._count += 1
        heapq.heappush(self._agenda, (due, self._count, what))

    def play(self, disturbances: Sequence[Disturbance], seconds: float, checker: Checker) -> None:
        """So long; each disturbance comes as often as it says."""
        for disturbance in disturbances:
            self._again(disturbance)
        end = self.world.now_ns + int(seconds * SECOND)
        while self.world.now_ns < end:
            due = min(self._agenda[0][0] if self._agenda else end, end)
            if due > self.world.now_ns:
                self.world.run((due - self.world.now_ns) / SECOND + 0.005, between=checker)
            while self._agenda and self._agenda[0][0] <= self.world.now_ns:
                heapq.heappop(self._agenda)[2]()

    def _again(self, disturbance: Disturbance) -> None:
        def now() -> None:
            disturbance.happen(self)
            self._again(disturbance)

        self.later(0.3 * disturbance.every_s, 1.7 * disturbance.every_s, now)

    def anyone(self) -> int:
        """A host that is up, or 0 if a third is down already."""
        up = [host for host, node in self.world.nodes.items() if node.up]
        if len(up) <= 2 * len(self.world.nodes) // 3:
            return 0
        return int(self.rng.choice(up))

    def cut(self, paths: set[int], low_s: float, high_s: float) -> None:
        """Paths carry nothing for a time."""
        self.cuts.append(paths)
        self._cut()

        def heal() -> None:
            self.cuts.remove(paths)
            self._cut()

        self.later(low_s, high_s, heal)

    def _cut(self) -> None:
        self.world.cut = set().union(*self.cuts)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that happens now and then."""

    every_s: float
    happen: Callable[[Stage], None]


def leave(stage: Stage) -> None:
    """A host goes, and comes back with another clock."""
    host = stage.anyone()
    if host:
        stage.world.nodes[host].up = False
        stage.later(0.05, 8, lambda: stage.world.restart(host))


def lose(stage: Stage) -> None:
    """So does a host that gives the time."""
    givers = {node.core.status.reference for node in stage.world.nodes.values() if node.up} - {0}
    giver = int(stage.rng.choice(sorted(givers))) if givers else 0
    if stage.anyone() and giver and stage.world.nodes[giver].up:
        stage.world.nodes[giver].up = False
        stage.later(0.3, 12, lambda: stage.world.restart(giver))


def again(stage: Stage) -> None:
    """A clock service ends and is started again."""
    host = stage.anyone()
    if host:
        stage.world.again(host)


def divide(stage: Stage) -> None:
    """Some hosts are cut off from the others."""
    hosts = list(stage.world.nodes)
    part = set(stage.rng.choice(hosts, int(stage.rng.integers(1, len(hosts) // 2 + 1)), False))
    paths = {p for p, (a, b) in enumerate(stage.world.pairs) if (a in part) != (b in part)}
    stage.cut(paths, 0.1, 20)


def isolate(stage: Stage) -> None:
    """One host is cut off from all for up to a minute."""
    host = stage.anyone()
    stage.cut({p for p, pair in enumerate(stage.world.pairs) if host in pair}, 5, 60)


def hermit(stage: Stage) -> None:
    """One host is cut off from all for one to ten minutes."""
    host = stage.anyone()
    stage.cut({p for p, pair in enumerate(stage.world.pairs) if host in pair}, 60, 600)


def set_clock(stage: Stage) -> None:
    """A host slept, or its clock was set, by a microsecond to a second."""
    host = stage.anyone()
    if host:
        size = int(10 ** stage.rng.uniform(3, 9)) * (1 if stage.rng.random() < 0.5 else -1)
        stage.world.step_clock(host, size)


def reroute(stage: Stage) -> None:
    """A path's ways become other ones: longer, shorter, more or less alike."""
    world = stage.world
    path = int(stage.rng.integers(len(world.pairs)))
    if isinstance(world, PacketWorld):
        way = world.ways[path, int(stage.rng.integers(2))]
        way.delay_ns = float(stage.rng.uniform(*world.delays_ns))
    else:
        world.bias[path] = stage.rng.uniform(-0.95, 0.95) * HALF_RTT_NS


def queues(stage: Stage) -> None:
    """The load of a way changes: none, some or most trains meet a queue, or one stands."""
    world = stage.world
    if not isinstance(world, PacketWorld):
        raise TypeError("queues are of packets")
    way = world.ways[int(stage.rng.integers(len(world.pairs))), int(stage.rng.integers(2))]
    way.share = float(stage.rng.choice([0.0, 0.0, 0.5, 0.9]))
    way.standing_ns = float(stage.rng.choice([0.0, 0.0, 100e3, 500e3, 5e6]))
    way.queue_ns = float(stage.rng.choice([1e3, 40e3, 400e3]))
    way.escape = float(stage.rng.choice([0.0, 0.02]))
