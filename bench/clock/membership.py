"""How near all hosts are to the solution of all paths at once, 5 s after hosts came and went.

In virtual time, with what hosts run (`clocksync.mesh.host`): each knows its neighbours' messages
alone.
"""

from __future__ import annotations

import numpy as np

from bench.clock.clos import regular_graph
from bench.clock.world import World
from bench.report import Row

HOSTS, FEWER, DEGREE = 128, 32, 10
NEAR_NS = 5.0
BIAS_NS = 50.0
"""How unlike the two ways of a path are (standard deviation): what the mesh has to spread."""
AFTER_S = 5.0
JOIN_S = 30.0
"""Most that it takes until all have joined one mesh; a host listens for 3 s first."""
APART_S = 20.0


def _joined(world: World) -> float:
    """Run until all hosts that are up are of one mesh; returns how long that took, in s.

    Raises:
        RuntimeError: they do not join.
    """
    for number in range(round(JOIN_S * 10)):
        up = [node.core for node in world.nodes.values() if node.up]
        if len({core.mesh_id for core in up}) == 1 and all(core.mesh is not None for core in up):
            return number / 10
        world.run(0.1)
    raise RuntimeError("hosts do not join")


def mesh(*, quick: bool) -> list[Row]:
    """Farthest host from the central solution after each kind of change."""
    hosts = FEWER if quick else HOSTS
    rng = np.random.default_rng(6)
    pairs = [(one + 1, other + 1) for one, other in regular_graph(rng, hosts, DEGREE)]
    world = World(6, hosts, pairs, scatter_ns=0.0, bias_ns=BIAS_NS)
    some = [int(host) for host in rng.choice(np.arange(1, hosts + 1), hosts // 4, replace=False)]
    far: dict[str, tuple[float, float]] = {}

    def changed(what: str) -> None:
        took = _joined(world)
        world.run(max(0.0, AFTER_S - took))
        far[what] = max(map(abs, world.central().values())), took

    changed("a mesh begins")
    for host in some:
        world.nodes[host].up = False
    changed("a quarter of the hosts leave at once")
    for host in some:
        world.restart(host)
    changed("as many join, with other clocks")
    half = set(range(1, hosts // 2 + 1))
    world.cut = {path for path, (a, b) in enumerate(world.pairs) if (a in half) != (b in half)}
    world.run(APART_S)
    world.cut = set()
    changed("two halves that were apart for 20 s meet again")
    return [
        Row(f"{hosts} hosts, degree {DEGREE}, {what}: off the central solution, at worst",
            NEAR_NS, worst, "ns",
            note=f"{AFTER_S:.0f} s after that; all were of one mesh after {took:.1f} s")
        for what, (worst, took) in far.items()
    ]  # fmt: skip
