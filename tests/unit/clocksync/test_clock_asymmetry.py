"""A path whose two ways differ is named, and only that; ports are tried, and not for ever."""

import math

import numpy as np
import pytest

from bench.clock.clos import regular_graph
from bench.clock.least_squares import Graph, solve
from bench.clock.world import World
from clocksync.mesh.asymmetry import AsymmetryRules, Blame, Evidence, Finding, Surplus, judge
from clocksync.mesh.ecmp_rerouter import (
    GUILTY,
    TABLE,
    EcmpRerouter,
    Event,
    MoveRules,
    PathState,
    PortStatus,
    path_mark,
)
from clocksync.pair.model import SECOND

pytestmark = pytest.mark.virtual_time

RULES = AsymmetryRules()
NOW = 10**12


def mesh(hosts=8, degree=4, seed=3, **changes):
    pairs = [(a + 1, b + 1) for a, b in regular_graph(np.random.default_rng(seed), hosts, degree)]
    return World(seed, hosts, pairs, **changes)


class Bound:
    def __init__(self, world):
        self.world, self.missed, self.checks = world, [], 0

    def __call__(self):
        if self.world.now_ns % 100_000_000 == 0:
            self.checks += len(self.world.nodes)
            self.missed += self.world.misses()


def named(world):
    return {change.path for _, _, change in world.changes if change.state is PathState.NAMED}


def test_the_longer_way_is_named_by_both_ends_and_moved_by_the_one_that_sends_there():
    world = mesh()
    bad = 5
    one, other = world.pairs[bad]
    world.longer[bad, other] = lambda port: 0.0 if port else 1000.0
    for node in world.nodes.values():
        node.core.mover = EcmpRerouter(MoveRules(persist_ns=8 * SECOND, settle_ns=15 * SECOND))
    bound = Bound(world)
    world.run(60, bound)
    assert named(world) == {bad}
    assert {host for _, host, change in world.changes if change.port} == {other}
    states = [c.state for _, host, c in world.changes if host == other]
    assert states == [
        PathState.SUSPECT, PathState.NAMED, PathState.MOVED, PathState.WATCHING,
    ]  # fmt: skip
    for host in (one, other):
        node = world.nodes[host].core
        assert not node.edges[bad].asymmetric
        assert abs(node.edges[bad].surplus_ns) < 30
    assert bound.checks > 4000
    assert bound.missed == []


def test_a_way_that_became_longer_while_it_was_watched_is_named_too():
    """Its lines leave that out after a minute: nobody's time is off, and ECMP may have a better."""
    world = mesh()
    bad, make = 5, world._pair

    def pair(node, path, peer, sign):
        found = make(node, path, peer, sign)
        return found._replace(skew_ns=900.0 * sign) if path == bad else found

    world._pair = pair
    for node in world.nodes.values():
        node.core.mover = EcmpRerouter(MoveRules(persist_ns=8 * SECOND, settle_ns=15 * SECOND))
    world.run(40)
    assert named(world) == {bad}
    assert {host for _, host, change in world.changes if change.port} == {world.pairs[bad][0]}
    assert max(map(abs, world.errors().values())) < 50


def least_squares(rng, hosts, pairs, seconds, biases):
    """What each end sees of its paths, each second: the residuals of the whole mesh's solution."""
    one, other = (np.array([pair[end] for pair in pairs], np.intp) for end in (0, 1))
    ones = np.ones(len(pairs))
    left_over = np.stack(
        [solve(Graph(hosts, one, other, unit, ones)).surplus_ns for unit in np.eye(len(pairs))], 1
    )  # the solution is linear in what the paths say
    noise = np.zeros(len(pairs))
    for _ in range(seconds):
        noise = 0.8 * noise + rng.normal(0, 8, len(pairs))
        yield left_over @ (biases + noise)


class Ends:
    """All hosts' judgements of a mesh of which the residuals are given."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.surplus = {}
        self.said = {}
        self.movers = {}
        self.named = []
        self.now = NOW

    def step(self, left, judged):
        self.now += SECOND
        said = {}
        for host in {end for pair in self.pairs for end in pair}:
            mine = {p: (1 if pair[0] == host else -1) for p, pair in enumerate(self.pairs)
                    if host in pair}  # fmt: skip
            mover = self.movers.setdefault(host, EcmpRerouter(may_move=False))
            evidence = {}
            for path, sign in mine.items():
                surplus = self.surplus.setdefault((host, path), Surplus(looks=RULES.warm))
                for _ in range(3):
                    surplus.look(sign * left[path], self.now)
                mover.watch(path, path + 1)
                if not judged:
                    continue
                evidence[path] = Evidence(
                    surplus, self.said.get((sum(self.pairs[path]) - host, path)),
                    mover.asymmetric(path),
                )  # fmt: skip
            if not judged:
                continue
            found = judge(evidence, self.now, RULES)
            for change in mover.step(self.now, found, {}):
                if change.state is PathState.NAMED:
                    self.named.append((host, change.path))
            for path, finding in found.items():
                if finding.suspected or mover.asymmetric(path):
                    said[host, path] = Blame(finding.ns, self.now)
        if judged:
            self.said = said


def run(seed, biases, seconds, hosts=8, degree=4):
    rng = np.random.default_rng(seed)
    pairs = regular_graph(rng, hosts, degree)
    ends = Ends(pairs)
    for second, left in enumerate(least_squares(rng, hosts, pairs, seconds, biases(rng, pairs))):
        ends.step(left, second % 3 == 0)
    return ends, pairs


def test_noise_alone_names_nothing_in_an_hour():
    ends, _ = run(1, lambda rng, pairs: rng.normal(0, 10, len(pairs)), 3600)
    assert ends.named == []


@pytest.mark.parametrize("seed", range(5))
def test_500_ns_name_the_path_and_never_a_neighbour(seed):
    def biases(rng, pairs):
        out = rng.normal(0, 10, len(pairs))
        out[seed] += 500 * (-1) ** seed
        return out

    ends, pairs = run(seed, biases, 150)
    assert {path for _, path in ends.named} == {seed}
    assert {host for host, _ in ends.named} == set(pairs[seed])


@pytest.mark.parametrize("seed", range(5))
def test_an_asymmetry_that_all_paths_of_a_host_have_names_none(seed):
    def biases(rng, pairs):
        mine = np.array([(pair[1] == 2) * 1.0 - (pair[0] == 2) * 1.0 for pair in pairs])
        return rng.normal(0, 10, len(pairs)) + 500 * mine

    assert run(seed, biases, 150)[0].named == []


def test_what_is_the_fault_of_one_path_is_not_put_on_another_by_one_end_alone():
    loud = {p: Surplus(ns, 25.0, 500, NOW) for p, ns in enumerate((600.0, -200.0, -210.0, -190.0))}
    found = judge({p: Evidence(s, None, named=False) for p, s in loud.items()}, NOW, RULES)
    assert found[0].suspected
    assert not any(finding.agreed for finding in found.values())
    for said, agrees in ((-650.0, True), (650.0, False), (-90.0, False), (-4000.0, False)):
        blame = Blame(said, NOW - SECOND)
        seen = {p: Evidence(s, blame if p == 0 else None, named=False) for p, s in loud.items()}
        assert judge(seen, NOW, RULES)[0].agreed == agrees
    late = Blame(-650.0, NOW - 4 * SECOND)
    seen = {p: Evidence(s, late, named=False) for p, s in loud.items()}
    assert not judge(seen, NOW, RULES)[0].agreed


def test_two_paths_are_no_evidence_and_a_noisy_one_is_not_believed():
    both = {p: Surplus(ns, 25.0, 500, NOW) for p, ns in enumerate((600.0, -600.0))}
    assert judge({p: Evidence(s, None, named=False) for p, s in both.items()}, NOW, RULES) == {}
    wild = {p: Surplus(ns, 40_000.0, 500, NOW) for p, ns in enumerate((600.0, -200.0, -200.0))}
    found = judge({p: Evidence(s, None, named=False) for p, s in wild.items()}, NOW, RULES)
    assert len(found) == 3
    assert not any(finding.suspected for finding in found.values())


class Moving:
    """One path of a host, blamed for what its port makes of it."""

    def __init__(self, left, rules=None, refused=()):
        self.mover = EcmpRerouter(rules)
        self.path = self.mover.watch(1, 77)
        self.left, self.refused = left, refused
        self.now, self.took = NOW, (0, NOW)
        self.changes = []

    def run(self, seconds):
        for _ in range(seconds):
            self.now += SECOND
            wanted = self.path.port
            if wanted != self.took[0] and wanted not in self.refused:
                self.took = wanted, self.now
            left = self.left(self.took[0])
            # A mean of what is seen takes some seconds to be one.
            found = Finding(left, 100.0, abs(left) > 100, abs(left) > 100)
            known = self.now - self.took[1] > 12 * SECOND
            taken = PortStatus(self.took[0], refused=wanted in self.refused)
            self.changes += self.mover.step(self.now, {1: found} if known else {}, {1: taken})


def test_a_good_port_ends_it():
    path = Moving(lambda port: 20.0 if port else 700.0)
    path.run(200)
    assert path.path.state is PathState.WATCHING
    assert (path.path.moves, path.path.tries) == (1, 0)
    before = len(path.changes)
    path.run(7200)
    assert len(path.changes) == before
    path.mover.drop(1)
    path.mover.watch(1, 77)
    assert path.mover.moves == 1, "it happened, whatever became of the path"


def test_where_no_port_helps_it_gives_up_and_keeps_the_best():
    seen = {}

    def left(port):
        return seen.setdefault(port, 700.0 - 10 * (len(seen) % 4)) if port else 700.0

    path = Moving(left)
    path.run(3600)
    assert path.path.state is PathState.GAVE_UP
    assert len(path.path.tried) == 1 + MoveRules().tries
    assert path.path.port == min(path.path.tried, key=path.path.tried.get)
    assert path.path.tried[path.path.port] == 670.0
    moves = path.path.moves
    path.run(20_000)
    assert path.path.moves == moves <= MoveRules().tries + 1, "ports do not change for ever"


def test_ports_that_the_peer_does_not_hear_are_left():
    path = Moving(lambda _: 700.0, refused=range(61000, 65536))
    path.run(3600)
    assert path.path.state is PathState.GAVE_UP
    assert path.path.port == 0
    assert all(math.isinf(left) for port, left in path.path.tried.items() if port)


def test_a_port_that_was_good_and_is_not_heard_any_more_is_left_for_another():
    path = Moving(lambda port: 20.0 if port else 700.0)
    path.run(200)
    good = path.path.port
    path.refused, path.took = (good,), (0, path.now)
    path.run(2)
    assert (path.path.state, path.path.port) == (PathState.WATCHING, 0)
    path.run(200)
    assert path.path.state is PathState.WATCHING
    assert path.path.port not in (0, good), "another one is tried when it is named again"


def test_the_end_whose_way_is_shorter_waits_for_the_other():
    path = Moving(lambda _: -700.0)
    path.run(600)
    assert (path.path.state, path.path.moves) == (PathState.NAMED, 0)
    path.run(600)
    assert path.path.moves > 0, "the other end found nothing: it may be ours that is too short"


def test_without_leave_to_move_a_path_is_named_and_stays():
    path = Moving(lambda _: 700.0)
    path.mover.may_move = False
    path.run(3600)
    assert (path.path.state, path.path.port) == (PathState.NAMED, 0)


def test_a_host_moves_one_path_at_a_time():
    mover = EcmpRerouter()
    for path in range(4):
        mover.watch(path, path + 1)
    found = {path: Finding(700.0, 100.0, True, True) for path in range(4)}
    for second in range(120):
        mover.step(NOW + second * SECOND, found, {})
        assert sum(w.state is PathState.MOVED for w in mover.paths.values()) <= 1
    assert sum(w.state in GUILTY for w in mover.paths.values()) == 4


def test_what_cannot_happen_raises():
    for state in PathState:
        for event in Event:
            watched = EcmpRerouter().watch(1, 1)
            watched.state = state
            if (state, event) in TABLE:
                watched.fire(event, NOW)
                assert watched.state is TABLE[state, event]
            else:
                with pytest.raises(KeyError):
                    watched.fire(event, NOW)


def test_both_ends_of_a_path_have_one_mark_for_it():
    here, there = ("10.0.0.1", 9200), ("10.0.0.2", 9200)
    assert path_mark(here, there) == path_mark(there, here) != path_mark(here, ("10.0.0.3", 9200))
