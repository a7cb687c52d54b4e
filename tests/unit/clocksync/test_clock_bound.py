"""Bounds contain the truth, whatever befalls a mesh; the bench that looks at that sees misses."""

from dataclasses import replace

import numpy as np
import pytest

from bench.clock.bounds import SCENARIOS, Scenario, look
from bench.clock.clock_steps import set_one
from bench.clock.clos import regular_graph
from bench.clock.disturbances import Checker, Disturbance, Stage
from bench.clock.oscillator import GRID_NS, Oscillator
from bench.clock.packets import PacketWorld
from bench.clock.world import World
from clocksync.mesh.bound import BoundKeeper, Observation
from clocksync.mesh.election import Election, fallen_silent
from clocksync.mesh.messages import Reference
from clocksync.page.clock_page import State
from clocksync.pair.linear import Linear
from clocksync.pair.model import SECOND

pytestmark = pytest.mark.virtual_time

MS = 10**6


def pairs(hosts, degree, seed=3):
    return [(a + 1, b + 1) for a, b in regular_graph(np.random.default_rng(seed), hosts, degree)]


def test_no_bound_is_missed_in_some_seconds_of_trouble():
    found = look(replace(SCENARIOS["all of it"], life_s=14.0), 1000)
    assert found.checks >= 1000
    assert not found.missed


def test_a_bound_carried_from_step_to_step_is_that_of_one_long_step():
    """What two crystals may drift apart in ten minutes of holdover goes with the square of them."""
    keeper, said = BoundKeeper(1e-17), Reference(1, 100, 7, 1, 0, 0, 0.0, 0.0)
    sight = Observation(Linear(0, 0, 0.0, 0.0), 1000.0, 1.4e-8, 7, 1)
    keeper.look(Linear(0, 0, 0.0, 0.0), said, [sight])
    for step in range(1, 6001):
        known = keeper.look(Linear(step * 100 * MS, step * 100 * MS, 0.0, 0.0), said, [])
    assert known.bound_ns == pytest.approx(keeper.grown(1000.0, 1.4e-8, 600 * SECOND))
    assert known.bound_ns > 1_800_000
    assert known.drift == pytest.approx(1.4e-8 + 6e-6)


@pytest.mark.parametrize("order", [1, -1])
def test_neighbours_who_cannot_all_be_right_all_count(order):
    """The reference's clock was set by 50 µs, and one of its neighbours has a new line already."""
    keeper, said = BoundKeeper(1e-17), Reference(1, 100, 7, 1, 0, 0, 0.0, 0.0)
    ours = Linear(0, 26_000, 0.0, 0.0)

    def sights(*claims):
        made = [Observation(Linear(0, at, 0.0, 0.0), bound, 0.0, 7, 1) for at, bound in claims]
        return made[::order]

    before, moved = [(0, 5000.0), (10, 6000.0)], (50_000, 1100.0)
    assert keeper.look(ours, said, sights(*before)).bound_ns == 31_000.0
    keeper.forget()
    known = keeper.look(ours, said, sights(*before, moved))
    assert known.bound_ns == 10 + 31_980.0, "of two that cannot be, the one that is further off"
    assert keeper.look(ours, said, sights(*before)).bound_ns == 31_000.0, "and once it is gone"


@pytest.mark.parametrize("seed", [7, 13, 32])
def test_nobody_takes_the_time_of_a_reference_whose_clock_was_set_and_who_does_not_know(seed):
    """A neighbour has a new line to it while what it said before it knew is young."""
    told = set_one(seed, 5_000, giver=True)
    assert told.checks > 4000
    assert told.known_s < 0.5
    assert told.others == 0


def test_whole_nanoseconds_are_in_the_bound_of_who_was_reference_a_moment_ago():
    """Its bound is a few nanoseconds, and its reader and the other's leave parts of one out."""
    scenario = SCENARIOS["references are lost"]
    world = scenario.world(2)
    checker = Checker(world, 2, 20.0)
    Stage(world, 2).play(scenario.disturbances, 10.2, checker)
    assert min(checker.bounds) < 20
    assert not checker.missed


def test_a_bound_that_is_too_small_is_seen():
    world = World(4, 6, pairs(6, 3))
    world.run(9)
    checker = Checker(world, 1, 100.0)
    host = next(h for h, node in world.nodes.items() if not node.core.election.is_reference)
    world.nodes[host].clock.step(5000)  # nobody is told
    world.run(0.1, between=checker)
    assert {missed for _, missed, _, _ in checker.missed} == {host}


def test_troubles_come_and_their_ends_too():
    world = World(5, 6, pairs(6, 3))
    happened = []

    def disturbance(stage):
        happened.append(stage.world.now_ns)
        stage.cut({0, 1}, 0.5, 0.5)

    checker = Checker(world, 1, 1.0)
    stage = Stage(world, 5)
    stage.play([Disturbance(2, disturbance)], 9, checker)
    assert 3 <= len(happened) <= 14
    assert world.cut in ({0, 1}, set())
    stage.play([], 1, checker)
    assert len(stage.cuts) <= 1


@pytest.mark.parametrize("scenario", [Scenario(), Scenario(packets=True)])
def test_a_seed_gives_the_same_world_again(scenario):
    seen = []
    for _ in range(2):
        world = scenario.world(7)
        world.run(0.2)
        seen.append([node.clock.raw(world.now_ns) for node in world.nodes.values()])
    assert seen[0] == seen[1]


def test_an_oscillator_shows_the_same_whenever_it_is_looked_at():
    one, other = (Oscillator(np.random.default_rng(8)) for _ in range(2))
    at = np.sort(np.random.default_rng(9).integers(0, 200 * SECOND, 500))
    late = [other.raw(int(when)) for when in at[::-1]][::-1]
    assert [one.raw(int(when)) for when in at] == late == one.raws(at).tolist()
    assert (np.diff(one.raws(at)) >= np.diff(at) * (1 - 40e-6) - 1).all()
    rate = (one.raw(GRID_NS) - one.raw(0)) / GRID_NS - 1
    assert rate == pytest.approx(one.rate(0), abs=1e-7)


def running(**more):
    world = PacketWorld(6, 6, pairs(6, 3), **more)
    world.run(7)
    assert {node.core.status.state for node in world.nodes.values()} == {State.LOCKED}
    return world


def test_a_clock_that_was_set_pulls_nobodys_time():
    """What it said before is over its old clock; lines of its paths over the new one came later."""
    world = running()
    host = next(h for h, node in world.nodes.items() if not node.core.election.is_reference)
    world.step_clock(host, 100 * MS)
    checker = Checker(world, 1, 100.0)
    worst = []
    world.run(4, lambda: worst.extend(map(abs, world.errors().values())), checker)
    assert not checker.missed
    assert max(worst) < 200
    assert world.nodes[host].core.status.state is State.LOCKED


def test_a_clock_that_is_set_and_nobody_told_is_seen_by_its_own_host():
    world = running()
    host = next(h for h, node in world.nodes.items() if not node.core.election.is_reference)
    epoch = world.nodes[host].core.epoch
    world.hidden_step(host, 50_000)
    world.run(1)
    assert world.nodes[host].core.status.state is State.UNSYNCED
    world.run(4)
    assert world.nodes[host].core.status.state is State.LOCKED
    assert world.nodes[host].core.epoch > epoch
    assert max(map(abs, world.errors().values())) < 200
    assert not world.misses()


def test_who_hears_nobody_holds_over_and_does_not_take_over():
    world = World(7, 6, pairs(6, 3))
    world.run(9)
    host = next(h for h, node in world.nodes.items() if not node.core.election.is_reference)
    world.cut = {path for path, pair in enumerate(world.pairs) if host in pair}
    checker = Checker(world, 1, 100.0)
    world.run(20, between=checker)
    assert world.nodes[host].core.status.state is State.HOLDOVER
    assert not world.nodes[host].core.election.is_reference
    assert not checker.missed


def test_a_host_that_takes_over_again_does_so_in_another_term():
    """What it gave the first time is not what it gives the second, though its id is the same."""
    mesh = Linear(0, 0, 0.0, 0.0)
    election = Election(5, 100)
    said = Reference(9, 10, 2, 4, 0, 0, 0.0, 0.0)
    election.choose([said], 0)
    late = mesh.moved(2 * SECOND)
    election.stand(late, late, 9, may=True, locked_ns=0)
    first = election.reference.term
    election.choose([said._replace(mesh_ns=2 * SECOND)], 2 * SECOND)
    assert election.reference.id == 2
    late = mesh.moved(9 * SECOND)
    election.stand(late, late, 9, may=True, locked_ns=0)
    assert election.is_reference
    assert election.reference.term > first > 4


@pytest.mark.parametrize(("own", "others", "silent"), [
    ([600], [990], True), ([600, 850], [990], False), ([850], [990], False), ([600], [850], False),
    ([0], [990], False), ([600], [], False), ([], [990], False),
])  # fmt: skip
def test_a_reference_is_silent_when_it_is_and_others_are_not(own, others, silent):
    assert fallen_silent(own, others, 1000, 200) is silent
