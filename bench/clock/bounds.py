"""Whether the bound contains the truth, whatever happens: a million looks at clock pages.

Hosts of a mesh in virtual time, where truth is known to the nanosecond. Half of the looks are at
cores whose paths say what is made up (`bench.clock.world`: many hosts, often divided), half at
estimators and cores together (`bench.clock.packets`: queues, unlike and changing ways).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.clock import disturbances
from bench.clock.clos import regular_graph
from bench.clock.disturbances import Checker, Disturbance, Stage
from bench.clock.packets import PacketWorld
from bench.clock.world import World
from bench.report import Row

CHECKS = 1_000_000
QUICK_CHECKS = 100_000
LIFE_S = 60.0
"""Of a world; then another one begins, with hosts that know nothing."""
ALIKE, UNLIKE = (1000.0, 1010.0), (1000.0, 60_000.0)
COMES_AND_GOES = (
    Disturbance(7, disturbances.leave),
    Disturbance(13, disturbances.lose),
    Disturbance(9, disturbances.again),
    Disturbance(15, disturbances.divide),
    Disturbance(17, disturbances.set_clock),
    Disturbance(25, disturbances.isolate),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Worlds of one kind."""

    disturbances: Sequence[Disturbance] = ()
    packets: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    """Of the world."""
    life_s: float = LIFE_S
    looks_hz: float = 20.0
    """At each host's page; with packets, of which there are fewer hosts, four times that."""

    def world(self, seed: int) -> World:
        """One of them."""
        rng = np.random.default_rng((seed, 3))
        hosts, degree = (8, 3) if self.packets else (16, 4)
        pairs = [(one + 1, other + 1) for one, other in regular_graph(rng, hosts, degree)]
        make = PacketWorld if self.packets else World
        return make(seed, hosts, pairs, **self.more)


SCENARIOS: Mapping[str, Scenario] = {
    "nothing happens": Scenario(),
    "hosts join and leave": Scenario([Disturbance(3, disturbances.leave)]),
    "references are lost": Scenario(
        [Disturbance(6, disturbances.lose), Disturbance(11, disturbances.again)]
    ),
    "the network is divided": Scenario([Disturbance(8, disturbances.divide)]),
    "hosts are cut off": Scenario([Disturbance(12, disturbances.isolate)]),
    "hosts are cut off for minutes": Scenario(
        [Disturbance(60, disturbances.hermit)], life_s=900.0, looks_hz=5.0
    ),
    "clocks are set": Scenario([Disturbance(4, disturbances.set_clock)]),
    "unlike ways that change": Scenario(
        [Disturbance(0.5, disturbances.reroute)], more={"bias_ns": 100.0}
    ),
    "all of it": Scenario([*COMES_AND_GOES, Disturbance(1, disturbances.reroute)]),
    "all of it, clocks five times as bad": Scenario(COMES_AND_GOES, more={"wander": 5e-9}),
    "packets: queues": Scenario([Disturbance(0.5, disturbances.queues)], packets=True),
    "packets: queues, unlike ways": Scenario(
        [Disturbance(1, disturbances.queues), Disturbance(2, disturbances.reroute)],
        packets=True, more={"delays_ns": UNLIKE},
    ),
    "packets: clocks are set": Scenario([Disturbance(3, disturbances.set_clock)], packets=True),
    "packets: all of it": Scenario(
        [
            *COMES_AND_GOES,
            Disturbance(1, disturbances.queues),
            Disturbance(2, disturbances.reroute),
        ],
        packets=True, more={"delays_ns": UNLIKE},
    ),
    "packets: all of it, clocks five times as bad": Scenario(
        [*COMES_AND_GOES, Disturbance(1, disturbances.queues)], packets=True,
        more={"delays_ns": UNLIKE, "wander": 5e-9},
    ),
}  # fmt: skip


@dataclass(slots=True)
class Found:
    """Of a scenario."""

    checks: int = 0
    silent: int = 0
    missed: list[tuple[int, float, int, float, float]] = field(default_factory=list)
    """Seed, true time in s, host, error, bound."""
    bounds: list[float] = field(default_factory=list)
    used: float = 0.0
    seconds: float = 0.0


def look(scenario: Scenario, checks: int, seed: int = 0) -> Found:
    """Worlds of it, until so many pages that say a time were read."""
    found = Found()
    while found.checks < checks:
        seed += 1
        world = scenario.world(seed)
        checker = Checker(world, seed, scenario.looks_hz * (4 if scenario.packets else 1))
        Stage(world, seed).play(scenario.disturbances, scenario.life_s, checker)
        found.checks += checker.checks
        found.silent += checker.silent
        found.missed += [(seed, *miss) for miss in checker.missed]
        found.bounds += checker.bounds
        found.used = max(found.used, checker.used)
        found.seconds += scenario.life_s
    return found


def bound(*, quick: bool) -> list[Row]:
    """Misses by scenario, and of all."""
    each = -(-(QUICK_CHECKS if quick else CHECKS) // len(SCENARIOS))
    rows, checks, missed = [], 0, 0
    for name, scenario in SCENARIOS.items():
        found = look(scenario, each)
        checks, missed = checks + found.checks, missed + len(found.missed)
        half, most = np.percentile(found.bounds, (50, 99))
        note = (
            f"{found.checks} checks in {found.seconds:.0f} s; an error was at most "
            f"{100 * found.used:.0f} % of its bound; bound {half:.0f} / {most:.0f} ns, p50 / p99; "
            f"without a time {100 * found.silent / (found.checks + found.silent):.1f} %"
        )
        if found.missed:
            seed, at, host, error, size = found.missed[0]
            note += f"; first: seed {seed}, {at:.3f} s, host {host}: {error:.0f} of {size:.0f} ns"
        rows.append(Row(f"bound, {name}: misses", 0, len(found.missed), "", better="equal",
                        note=note))  # fmt: skip
    rows.append(Row("bound: misses in all checks", 0, missed, "", better="equal",
                    note=f"{checks} checks"))  # fmt: skip
    return rows
