"""A host with the key says that an invented host gives the time, and then falls silent."""

import numpy as np
import pytest

from bench.clock.clos import regular_graph
from bench.clock.world import World
from clocksync.mesh.codec import decode, encode
from clocksync.mesh.messages import Mesh, Reference, Time
from clocksync.page.clock_page import State
from clocksync.pair.model import SECOND

pytestmark = pytest.mark.virtual_time

SEED, HOSTS, DEGREE = 3, 8, 3
LIAR, INVENTED = 1, 0xDEAD
DAY = 86_400 * SECOND
BACK_S = 20
"""A dead reference is forgotten after 5 s; a better host may take over once more, 10 s later."""


class LyingHost:
    """Replaces what a host's core says of the reference."""

    def __init__(self, core, *, ahead_ns, early_ns=0, bound=False, term=1):
        self.core, self.said = core, core.messages
        self.ahead_ns, self.early_ns, self.bound, self.term = ahead_ns, early_ns, bound, term
        core.messages = self.messages

    def stop(self):
        self.core.messages = self.said

    def messages(self):
        core, out = self.core, []
        for message in map(decode, self.said()):
            if isinstance(message, Mesh):
                out.append(message._replace(reference=INVENTED))
            elif not isinstance(message, Reference | Time):
                out.append(message)
        if core.mesh_id is not None and core.mesh is not None:
            tag, mesh = core.mesh_id.tag, core.mesh
            at = mesh.ns + self.early_ns
            out.append(Reference(tag, 0, INVENTED, self.term, at, self.ahead_ns, 0.0, 0.0))
            if self.bound:
                time = mesh.ns + self.ahead_ns
                out.append(Time(tag, INVENTED, self.term & 0xFF, mesh.at_ns, time, 100.0, 1e-9))
        return [encode(message) for message in out]


def well(world, hosts):
    """Whether these follow one host that lives."""
    cores = [world.nodes[host].core.status for host in hosts]
    (reference, *more) = {core.reference for core in cores}
    alive = not more and reference in world.nodes and world.nodes[reference].up
    return alive and {core.state for core in cores} == {State.LOCKED}


@pytest.mark.parametrize("then", ["dies", "is honest"])
@pytest.mark.parametrize(
    "lie",
    [
        {"ahead_ns": DAY},
        {"ahead_ns": DAY, "bound": True},
        {"ahead_ns": 100},
        {"ahead_ns": DAY, "early_ns": 900_000_000, "term": 0x7FFF},
        {"ahead_ns": -DAY, "early_ns": DAY},
    ],
    ids=["a day ahead", "with a bound", "hardly ahead", "of a second ahead", "of tomorrow"],
)
def test_all_go_back_to_a_living_reference(lie, then):
    pairs = regular_graph(np.random.default_rng(SEED), HOSTS, DEGREE)
    world = World(SEED, HOSTS, [(a + 1, b + 1) for a, b in pairs])
    world.run(12)
    others = [host for host in world.nodes if host != LIAR]
    assert well(world, others)
    liar = LyingHost(world.nodes[LIAR].core, **lie)
    world.run(15)
    liar.stop()
    world.nodes[LIAR].up = then == "is honest"
    world.run(BACK_S)
    assert well(world, others)
    assert not world.misses()
    world.run(5)
    assert well(world, others), "and stay there"
