"""Clocks that are set and nobody is told: who is misled, and for how long.

A raw clock is never set (clock_gettime(2)); that of a virtual machine that is moved may be. Until
its packets show it a host cannot know: its own page is wrong by the step meanwhile. Nobody else's
may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.clock.clos import regular_graph
from bench.clock.disturbances import Checker
from bench.clock.packets import PacketWorld
from bench.report import Row
from clocksync.page.clock_page import State
from clocksync.pair.model import SECOND

HOSTS, DEGREE, LOOKS_HZ = 8, 4, 200.0
SIZES_NS = (500, 5_000, 50_000, 10**6, 3 * 10**8, SECOND)
"""Of longer ones no packet of before is left in a path's window (`Rules.longest_ns`)."""
LEARN_S, AFTER_S = 8.0, 4.0


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one step."""

    known_s: float
    """Until the host itself said that it knows no time."""
    misled: int
    """Looks at its own page meanwhile that the truth was not in."""
    others: int
    """The same of other hosts' pages, ever."""
    checks: int


def set_one(seed: int, size_ns: int, *, giver: bool) -> Told:
    """The clock of a host is set, which gives the time or not."""
    rng = np.random.default_rng((seed, 9))
    pairs = [(one + 1, other + 1) for one, other in regular_graph(rng, HOSTS, DEGREE)]
    world = PacketWorld(seed, HOSTS, pairs)
    world.run(LEARN_S + float(rng.uniform(0, 0.5)))
    cores = {host: node.core for host, node in world.nodes.items()}
    host = next(host for host, core in cores.items() if core.election.is_reference == giver)
    began, known = world.now_ns, [float("inf")]
    world.hidden_step(host, size_ns if seed % 2 else -size_ns)
    checker = Checker(world, seed, LOOKS_HZ)

    def watch() -> None:
        if world.nodes[host].core.status.state is State.UNSYNCED:
            known[0] = min(known[0], (world.now_ns - began) / SECOND)

    world.run(AFTER_S, watch, checker)
    own = sum(miss[1] == host for miss in checker.missed)
    return Told(known[0], own, len(checker.missed) - own, checker.checks)


def clock_steps(*, quick: bool) -> list[Row]:
    """Others that are misled, and when the host knows."""
    seeds = range(1, 3 if quick else 9)
    found = [
        set_one(seed, size, giver=giver)
        for giver in (False, True) for size in SIZES_NS for seed in seeds
    ]  # fmt: skip
    late = [1e3 * each.known_s for each in found]
    checks = sum(each.checks for each in found)
    return [
        Row("clock set, nobody told: bounds of other hosts that do not contain the truth", 0,
            sum(each.others for each in found), "", better="equal",
            note=f"{checks} checks, {len(found)} steps of {SIZES_NS[0]} ns to 1 s either way, half "
            "of them of the reference"),
        Row("clock set, nobody told: until its own host says so, at worst", None, max(late), "ms",
            note=f"median {np.median(late):.0f} ms; {sum(each.misled for each in found)} looks at "
            "its own page were wrong by more than they said, before packets showed it"),
    ]  # fmt: skip
