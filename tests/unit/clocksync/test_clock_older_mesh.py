"""Which of the meshes that meet stays, and that a wrong date decides nothing."""

import numpy as np
import pytest

from bench.clock import world as worlds
from bench.clock.world import World
from clocksync.mesh.election import ALIKE_NS, older_mesh
from clocksync.mesh.messages import MeshId
from clocksync.page.clock_page import State
from clocksync.pair.model import SECOND

OLD, NEW = MeshId(9, 10**18), MeshId(2, 7)
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("own", "age", "heard", "found"),
    [
        (None, None, [], None),
        (OLD, None, [], OLD),
        (OLD, DAY, [], OLD),
        (None, None, [(NEW, 3 * SECOND)], NEW),
        (OLD, DAY, [(NEW, 3 * SECOND)], OLD),
        (NEW, 3 * SECOND, [(OLD, DAY)], OLD),
        (NEW, None, [(OLD, DAY), (NEW, 0)], OLD),
        # As good as at once: the smaller founder, on both sides.
        (OLD, DAY, [(NEW, DAY - ALIKE_NS)], NEW),
        (NEW, DAY - ALIKE_NS, [(OLD, DAY)], NEW),
        (OLD, DAY, [(NEW, DAY - ALIKE_NS - 1)], OLD),
        # What a neighbour says of our own mesh does not make it older.
        (OLD, DAY, [(OLD, 2**62), (NEW, 2 * DAY)], NEW),
        # One of two neighbours is wrong about theirs.
        (OLD, DAY, [(NEW, 2**62), (NEW, 5)], OLD),
    ],
)
def test_the_mesh_that_lasted_longer_stays(own, age, heard, found):
    assert older_mesh(own, age, heard) == found
    assert older_mesh(own, age, heard[::-1]) == found


def test_a_host_that_boots_in_1970_alone_takes_nobody_over(monkeypatch):
    ring = [(host, host % 6 + 1) for host in range(1, 7)]
    world = World(5, 6, ring)
    world.run(12)
    tag = world.nodes[1].core.mesh_id.tag
    joins = {host: world.nodes[host].core.status.joins for host in range(1, 6)}
    own = {path for path, _, _ in world.ends[6]}
    world.cut |= own
    world.restart(6)
    monkeypatch.setattr(worlds, "WALL_NS", -world.now_ns)
    world.run(6)
    assert world.nodes[6].core.mesh_id.founder == 6, "it has begun one by itself"
    assert world.nodes[6].core.mesh_id.founded_ns < 100 * SECOND
    world.cut -= own
    world.run(8)
    assert {node.core.mesh_id.tag for node in world.nodes.values()} == {tag}
    assert {node.core.status.state for node in world.nodes.values()} == {State.LOCKED}
    assert {host: world.nodes[host].core.status.joins for host in range(1, 6)} == joins
    assert np.max(np.abs(list(world.errors().values()))) < 100
