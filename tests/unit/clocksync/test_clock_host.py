"""Hosts of a mesh in virtual time: they agree, follow a reference, and their bounds hold."""

import numpy as np
import pytest

from bench.clock.clos import regular_graph
from bench.clock.world import HALF_RTT_NS, World
from clocksync.mesh.codec import decode
from clocksync.mesh.host import MeshHost
from clocksync.mesh.messages import Mesh, MeshId, Time
from clocksync.page.clock_page import State
from clocksync.pair.model import SECOND

pytestmark = pytest.mark.virtual_time

SEED = 3


def mesh(hosts, degree, **changes):
    pairs = [(a + 1, b + 1) for a, b in regular_graph(np.random.default_rng(SEED), hosts, degree)]
    return World(SEED, hosts, pairs, **changes)


class Watch:
    """Counts bounds that do not hold, and looks at how far hosts are off."""

    def __init__(self, world):
        self.world, self.checks, self.missed, self.worst = world, 0, [], 0.0

    def __call__(self):
        if self.world.now_ns % 25_000_000 == 0:
            errors = self.world.errors()
            self.checks += len(errors)
            self.missed += self.world.misses()
            self.worst = max(self.worst, *map(abs, errors.values()), 0.0)


def references(world):
    return {node.core.status.reference for node in world.nodes.values() if node.up}


def states(world):
    return {node.core.status.state for node in world.nodes.values() if node.up}


@pytest.fixture(scope="module")
def running():
    """Sixteen hosts, some seconds after they began."""
    world = mesh(16, 4, scatter_ns=0.0)
    watch = Watch(world)
    world.run(9, watch)
    return world, watch


def test_all_agree_with_the_solution_of_the_whole_mesh_after_five_seconds(running):
    world, watch = running
    assert states(world) == {State.LOCKED}
    assert len(references(world)) == 1
    off = world.central()
    assert len(off) == 16
    assert max(map(abs, off.values())) < 5.0
    assert max(map(abs, world.errors().values())) < 15.0, "of biases of 3 ns a path"
    assert watch.checks > 1000
    assert not watch.missed


def test_root_delay_is_the_least_round_trip_along_the_mesh(running):
    world, _ = running
    giver = next(h for h, node in world.nodes.items() if node.core.election.is_reference)
    assert world.nodes[giver].core.status.root_delay_ns == 0.0
    hops, edge = {giver: 0}, {giver}
    while edge:
        beyond = {peer for host in edge for _, peer, _ in world.ends[host]} - set(hops)
        hops |= dict.fromkeys(beyond, max(hops.values()) + 1)
        edge = beyond
    assert max(hops.values()) >= 2
    for host, node in world.nodes.items():
        if host != giver:
            wanted = hops[host] * 2 * HALF_RTT_NS
            assert wanted <= node.core.status.root_delay_ns <= 1.2 * wanted
            assert 0 < node.core.status.skew < 1e-6
            assert abs(node.core.status.offset_ns) < 50


def test_a_reference_is_replaced_without_a_jump_and_the_bound_holds(running):
    world, _ = running
    old = references(world).pop()
    gone = world.nodes[old]
    time, clock = gone.core.election.own, gone.clock
    gone.up = False
    watch = Watch(world)
    off = []

    def look():
        watch()
        true = time.moved(clock.raw(world.now_ns)).ns
        off.extend(
            abs(found[0] - true)
            for host in world.nodes
            if host != old and (found := world.fabric(host)) is not None
        )

    world.run(4, look)
    new = references(world)
    assert len(new) == 1
    assert old not in new
    assert states(world) == {State.LOCKED}
    assert max(off) <= 20
    assert not watch.missed
    gone.up = True
    world.restart(old)
    world.run(16, watch)
    assert states(world) == {State.LOCKED}
    assert len(references(world)) == 1
    assert max(map(abs, world.central().values())) < 5.0
    assert not watch.missed


def test_who_is_cut_off_goes_on_by_itself_and_comes_back(running):
    world, _ = running
    half = {host for host in world.nodes if host % 2}
    world.cut = {path for path, (a, b) in enumerate(world.pairs) if (a in half) != (b in half)}
    watch = Watch(world)
    world.run(10, watch)
    assert len(references(world)) > 1
    world.cut = set()
    world.run(6, watch)
    assert states(world) == {State.LOCKED}
    assert len(references(world)) == 1
    assert max(map(abs, world.central().values())) < 5.0
    assert not watch.missed


def test_the_host_with_the_smallest_priority_gives_the_time():
    world = mesh(8, 3, priority=lambda host: 10 if host == 5 else 255 if host < 4 else 100)
    world.run(20)
    assert references(world) == {5}
    world.nodes[5].up = False
    world.run(4)
    assert references(world) == {4}, "of equal priority the smallest id; 255 is never"


def test_without_neighbours_the_bound_grows_and_holds():
    world = mesh(6, 3, priority=lambda host: 100 if host <= 3 else 255)
    world.run(9)
    alone = 6
    world.cut = {path for path, pair in enumerate(world.pairs) if alone in pair}
    before = world.fabric(alone)[1]
    watch = Watch(world)
    world.run(60, watch)
    assert world.nodes[alone].core.status.state is State.HOLDOVER
    assert not watch.missed
    true = world.truth(next(iter(references(world) - {alone})))
    time, bound = world.fabric(alone)
    assert abs(time - true) < 1000, "a microsecond in a minute"
    assert bound > before


def test_a_step_of_the_own_clock_that_is_told_leads_to_another_epoch():
    world = mesh(6, 3)
    world.run(9)
    host = next(host for host in world.nodes if not world.nodes[host].core.election.is_reference)
    node = world.nodes[host]
    epoch = node.core.epoch
    node.clock.step(5_000_000)
    node.core.stepped(node.clock.raw(world.now_ns))
    world.run(0.15)
    assert world.fabric(host) is None
    world.run(6)
    assert node.core.epoch > epoch
    assert node.core.status.state is State.LOCKED
    assert abs(world.errors()[host]) < 30


def test_a_clock_that_goes_back_is_another_one():
    world = mesh(6, 3)
    world.run(9)
    host = next(host for host in world.nodes if not world.nodes[host].core.election.is_reference)
    core, epoch = world.nodes[host].core, world.nodes[host].core.epoch
    world.nodes[host].clock.step(-1000 * SECOND)
    assert core.went_back(world.nodes[host].clock.raw(world.now_ns))
    world.run(0.15)
    assert world.fabric(host) is None
    world.run(6)
    assert core.epoch > epoch
    assert core.status.state is State.LOCKED
    assert not core.went_back(world.nodes[host].clock.raw(world.now_ns))
    assert not world.misses()


def one_way(world, core, mesh_id, seconds, path=99):
    """A host of an older mesh is heard over a path that no line is ever known of."""
    for _ in range(round(seconds * 10)):
        now = core.now()
        core.hear(
            path, 50, now, mesh_id, Mesh(mesh_id.tag, now, mesh_id.founded_ns + 10**14, 0.0, 0, 0)
        )
        world.run(0.1)


OLD = MeshId(50, 10**18)


def test_a_mesh_that_is_heard_and_not_seen_is_no_reason_to_give_up_a_time():
    """Packets that come one way only, or that nothing stamps: there is no line over them."""
    world = mesh(4, 2)
    world.run(9)
    epochs = {host: node.core.epoch for host, node in world.nodes.items()}
    node = world.nodes[2]
    node.core.now = lambda: node.clock.raw(world.now_ns)
    watch = Watch(world)
    one_way(world, node.core, OLD, 5)
    world.run(1, watch)
    assert states(world) == {State.LOCKED}
    assert {host: node.core.epoch for host, node in world.nodes.items()} == epochs
    assert not watch.missed


def test_who_joins_anew_takes_the_mesh_that_it_sees():
    world = mesh(4, 2)
    world.run(9)
    node = world.nodes[2]
    node.core.now = lambda: node.clock.raw(world.now_ns)
    world.begin_anew(2)
    one_way(world, node.core, OLD, 6)
    assert states(world) == {State.LOCKED}
    assert len({n.core.mesh_id for n in world.nodes.values()}) == 1
    assert not world.misses()


def test_a_host_that_nobody_reaches_keeps_no_fabric_from_having_time():
    """Its own packets come through, and none of those to it; and it was there first."""
    world = mesh(4, 2)
    for node in world.nodes.values():
        node.core.now = lambda node=node: node.clock.raw(world.now_ns)
    watch = Watch(world)
    for _ in range(450):
        for node in world.nodes.values():
            now = node.core.now()
            said = Mesh(OLD.tag, now, OLD.founded_ns + 10**14, 0.0, 0, 0)
            node.core.hear(99, 50, now, OLD, said)
        world.run(0.1, watch)
        if world.now_ns < 25 * SECOND:
            assert states(world) == {State.UNSYNCED}, "a line may come late"
    assert states(world) == {State.LOCKED}
    assert len(references(world)) == 1
    assert not watch.missed


def test_a_mesh_whose_only_host_died_before_it_was_reached_is_none():
    world = World(SEED, 2, [(1, 2)])
    for host in (1, 2):
        core, clock = world.nodes[host].core, world.nodes[host].clock
        core.now = lambda clock=clock: clock.raw(world.now_ns)
        one_way(world, core, OLD, 0.5)
        assert core.mesh_id == OLD
    world.run(3)
    assert states(world) == {State.UNSYNCED}
    world.run(8)
    assert states(world) == {State.LOCKED}, "they began one of their own"
    assert len(references(world)) == 1
    assert max(map(abs, world.errors().values())) < 30


def test_most_paths_have_to_see_a_step_for_it_to_be_ours_whether_in_doubt_or_not():
    world = mesh(6, 3)
    world.run(9)
    host = next(host for host in world.nodes if not world.nodes[host].core.election.is_reference)
    core, now = world.nodes[host].core, world.nodes[host].clock.raw(world.now_ns)
    first, second, third = core.edges
    for path in (first, second):
        core.estimate(path, core.edges[path].peer, None)  # in doubt
    assert not core.path_stepped(first, now)
    assert core.path_stepped(second, now), "two of three"
    assert core.mesh_id is None
    assert third not in core.edges


def test_who_leaps_ahead_does_not_take_over_from_a_reference_that_its_neighbours_hear():
    world = mesh(6, 3, priority=lambda host: host)
    world.run(9)
    host = next(host for host in world.nodes if not world.nodes[host].core.election.is_reference)
    core = world.nodes[host].core
    world.nodes[host].clock.step(2 * SECOND)  # messages of before are as much older by it
    before = core.election.takeovers
    world.run(0.6)
    assert core.election.takeovers == before
    assert not core.election.is_reference


def test_one_dead_path_to_a_reference_that_lives_changes_nothing():
    world = mesh(8, 3)
    world.run(20)
    whose = references(world).pop()
    near = next(a if b == whose else b for a, b in world.pairs if whose in (a, b))
    core = world.nodes[near].core
    took, heard = core.election.takeovers, world.nodes[near].clock.raw(world.now_ns)
    world.cut = {path for path, pair in enumerate(world.pairs) if set(pair) == {near, whose}}
    for _ in range(20):
        world.run(0.1)
        core.silent(whose, heard)
    assert references(world) == {whose}
    assert core.status.state is State.LOCKED
    assert core.election.takeovers == took


def test_a_reference_whose_service_starts_again_goes_on_with_its_time():
    world = mesh(6, 3, priority=lambda host: 1 if host == 2 else 255)
    world.run(20)
    assert references(world) == {2}
    node = world.nodes[2]
    own, clock = node.core.election.own, node.clock
    node.core = MeshHost(2, 1, clock.raw(world.now_ns), 500)
    node.line = None
    node.fits.clear()
    watch = Watch(world)
    off = []

    def look():
        watch()
        true = own.moved(clock.raw(world.now_ns)).ns
        off.extend(
            abs(found[0] - true)
            for host in world.nodes
            if host != 2 and (found := world.fabric(host)) is not None
        )

    world.run(6, look)
    assert references(world) == {2}
    assert states(world) == {State.LOCKED}
    assert max(off) < 100, "nobody's time has jumped"
    assert not watch.missed


def test_a_host_that_joins_while_the_reference_dies_joins_all_the_same():
    world = mesh(6, 3, priority=lambda host: host)
    world.run(9)
    whose = references(world).pop()
    joining = next(host for host in world.nodes if host != whose)
    world.restart(joining)
    world.run(0.3)
    world.nodes[whose].up = False
    world.run(10)
    assert states(world) == {State.LOCKED}
    assert len(references(world)) == 1


@pytest.mark.parametrize(("bound_ns", "drift"), [(100.0, 0.6), (2e18, 0.0), (100.0, 2.0)])
def test_a_time_that_neighbours_would_refuse_is_not_said(bound_ns, drift):
    world = mesh(2, 1, scatter_ns=0.0)
    world.run(8)
    core = world.nodes[2].core
    assert any(isinstance(decode(message), Time) for message in core.messages())
    core._bounds.known = core._bounds.known._replace(bound_ns=bound_ns, drift=drift)
    said = [decode(message) for message in core.messages()]
    assert any(isinstance(message, Mesh) for message in said)
    assert not any(isinstance(message, Time) for message in said)


def test_nonsense_of_a_neighbour_stops_nobody():
    world = mesh(6, 3)
    world.run(9)
    tag = world.nodes[1].core.mesh_id.tag
    for _ in range(30):
        for host, node in world.nodes.items():
            path, peer, _ = world.ends[host][0]
            now = node.clock.raw(world.now_ns)
            whose = node.core.election.reference.id
            node.core.hear(path, peer, now, Mesh(tag, -(2**62), 2**62, 0.0, 0.0, whose))
        world.run(0.1)
    assert states(world) == {State.LOCKED}
    assert max(map(abs, world.errors().values())) < 100


def worst_of(world, reference, hosts, seconds):
    """Farthest that any of these is from the reference's time meanwhile, ns; all stay locked."""
    worst = 0.0
    for _ in range(round(seconds * 10)):
        world.run(0.1)
        for host in hosts:
            assert world.nodes[host].core.status.state is State.LOCKED
            worst = max(worst, abs(world.fabric(host)[0] - world.truth(reference)))
    return worst


def moved_ahead(world, hosts, ns):
    """As if their clocks had drifted for long."""
    for host in hosts:
        core = world.nodes[host].core
        core.mesh = core.mesh.moved(core.mesh.at_ns, ns)
        if core.election.own is not None:
            core.election.own = core.election.own.moved(core.election.own.at_ns, ns)


def test_who_comes_back_from_holdover_pulls_nobody():
    world = World(
        SEED, 4, [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)],
        priority=lambda host: 100 if host <= 2 else 255,
    )  # fmt: skip
    world.run(9)
    (reference,) = references(world)
    alone, epoch = world.nodes[4].core, world.nodes[4].core.epoch
    world.cut = {path for path, pair in enumerate(world.pairs) if 4 in pair}
    world.run(5)
    assert alone.status.state is State.HOLDOVER
    moved_ahead(world, [4], 6000.0)
    world.cut = set()
    assert worst_of(world, reference, {1, 2, 3} - {reference}, 3) < 20.0
    assert alone.status.state is State.LOCKED
    assert alone.epoch == epoch + 1, "too far to slew"
    assert abs(world.fabric(4)[0] - world.truth(reference)) < 20


def test_who_takes_over_before_it_could_compare_itself_is_followed():
    """Halves hear each other for less time than a line takes, and are apart again."""
    world = World(SEED, 4, [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)])
    world.run(14)
    between = {1, 2, 3, 4}
    world.cut = between
    world.run(5)
    world.cut = set()
    for path in between:
        for host in world.pairs[path]:
            world.nodes[host].fits[path] = world.now_ns + SECOND
    world.run(0.2)
    world.cut = between
    world.run(5)
    assert len(references(world)) == 2
    assert states(world) == {State.LOCKED}
    world.cut = set()
    world.run(5)
    assert len(references(world)) == 1
    assert states(world) == {State.LOCKED}


def test_halves_that_meet_again_leave_the_better_one_alone():
    """The others take over its time, in another epoch, and their neighbours do not meet them."""
    world = World(SEED, 6, [(1, 2), (2, 3), (1, 3), (4, 5), (5, 6), (4, 6), (3, 4)])
    world.run(14)
    world.cut = {6}
    world.run(20)
    kept, other = sorted(references(world))
    assert (kept in (1, 2, 3)) != (other in (1, 2, 3))
    stay = {1, 2, 3} if kept in (1, 2, 3) else {4, 5, 6}
    epochs = {host: world.nodes[host].core.epoch for host in world.nodes}
    moved_ahead(world, set(world.nodes) - stay, 50_000.0)
    world.cut = set()
    for host in (3, 4):  # Messages come at once, a line takes a while.
        world.nodes[host].fits[6] = world.now_ns + SECOND
    assert worst_of(world, kept, stay, 4) < 20.0
    world.run(3)
    assert states(world) == {State.LOCKED}
    assert references(world) == {kept}
    for host in world.nodes:
        core = world.nodes[host].core
        assert (core.epoch > epochs[host]) == (host not in stay)
        assert abs(world.fabric(host)[0] - world.truth(kept)) < 30


def test_what_our_own_stamps_may_be_off_by_is_in_the_bound_once_at_each_host():
    bounds = {}
    for off in (0.0, 700.0):
        world = mesh(3, 2, scatter_ns=0.0)
        for node in world.nodes.values():
            node.core.stamps_off_ns = off
        world.run(9)
        for host, node in world.nodes.items():
            bounds[off, host] = node.core.status.bound_ns
    for host, node in world.nodes.items():
        more = 700.0 if node.core.status.is_reference else 1400.0
        assert bounds[700.0, host] - bounds[0.0, host] == pytest.approx(more, abs=60)


def test_a_bound_that_rested_on_what_is_not_true_is_made_anew():
    world = mesh(4, 2)
    world.run(8)
    cores = [node.core for node in world.nodes.values() if not node.core.status.is_reference]
    honest = [core.status.bound_ns for core in cores]
    for core in cores:
        core._bounds.known = core._bounds.known._replace(bound_ns=1.0)
    world.run(1)
    assert max(core.status.bound_ns for core in cores) < min(honest) / 2
    for core in cores:
        core.distrust()
    world.run(1)
    # By whichever neighbour is best now; none is better than a path.
    assert min(core.status.bound_ns for core in cores) > 0.9 * min(honest)
