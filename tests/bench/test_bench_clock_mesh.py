"""Offsets of many clocks from differences of pairs: the whole graph, and hosts' own steps."""

import numpy as np
import pytest

from bench.clock.clos import regular_graph
from bench.clock.least_squares import Graph, parts, solve
from clocksync.mesh.solver import DAMPING, Pull, step


def regular(clocks, degree, rng, noise=0.0, truth=None):
    """A random graph of about that degree, connected by a ring."""
    pairs = {(i, (i + 1) % clocks) for i in range(clocks)} if clocks > 2 else {(0, 1)}
    while len(pairs) < clocks * degree // 2:
        a, b = sorted(rng.choice(clocks, 2, replace=False).tolist())
        if (a, b) not in pairs and (b, a) not in pairs:
            pairs.add((a, b))
    one, other = np.array(sorted(pairs)).T
    truth = rng.uniform(-1e9, 1e9, clocks) if truth is None else truth
    apart = truth[other] - truth[one] + rng.normal(0, noise, len(one))
    return Graph(clocks, one, other, apart, rng.uniform(0.5, 2, len(one))), truth


def by_pseudo_inverse(graph):
    laplacian, right = np.zeros((graph.clocks, graph.clocks)), np.zeros(graph.clocks)
    for i, j, apart, w in zip(graph.one, graph.other, graph.apart_ns, graph.weight, strict=True):
        laplacian[i, i] += w
        laplacian[j, j] += w
        laplacian[i, j] -= w
        laplacian[j, i] -= w
        right[i] -= w * apart
        right[j] += w * apart
    return np.linalg.pinv(laplacian) @ right


def test_differences_without_error_give_the_clocks_back():
    graph, truth = regular(64, 6, np.random.default_rng(1))
    found = solve(graph)
    assert np.abs(found.offset_ns - (truth - truth.mean())).max() < 1e-3
    assert np.abs(found.surplus_ns).max() < 1e-2


@pytest.mark.parametrize("seed", range(5))
def test_the_solution_is_that_of_the_pseudo_inverse(seed):
    graph, _ = regular(40, 4, np.random.default_rng(seed), noise=20, truth=np.zeros(40))
    assert solve(graph).offset_ns == pytest.approx(by_pseudo_inverse(graph), abs=1e-6)


def test_loops_take_away_most_of_the_error():
    rng, pair, mesh = np.random.default_rng(2), [], []
    for _ in range(20):
        graph, _ = regular(128, 10, rng, noise=10, truth=np.zeros(128))
        found = solve(graph)
        pair += np.abs(graph.apart_ns).tolist()
        mesh += np.abs(found.offset_ns[graph.other] - found.offset_ns[graph.one]).tolist()
    assert np.mean(mesh) < np.mean(pair) / 2


def test_a_path_with_unlike_directions_has_the_greatest_surplus():
    graph, _ = regular(64, 8, np.random.default_rng(3), noise=3, truth=np.zeros(64))
    graph.apart_ns[77] += 200
    surplus = np.abs(solve(graph).surplus_ns)
    assert surplus.argmax() == 77
    assert surplus[77] > 100 > 3 * np.delete(surplus, 77).max() > 0


def test_parts_of_a_mesh_are_solved_each_by_itself():
    one, other = np.array([0, 1, 3, 5]), np.array([1, 2, 4, 6])
    graph = Graph(8, one, other, np.array([10.0, 5.0, 8.0, -4.0]), np.ones(4))
    found = solve(graph)
    assert found.part.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert found.offset_ns == pytest.approx([-25 / 3, 5 / 3, 20 / 3, -4, 4, 2, -2, 0])


def test_a_chain_is_one_part_however_it_is_numbered():
    order = np.random.default_rng(4).permutation(500)
    graph = Graph(500, order[:-1], order[1:], np.zeros(499), np.ones(499))
    assert parts(graph).tolist() == [0] * 500


def test_no_paths_no_offsets():
    empty = np.array([], dtype=np.intp)
    found = solve(Graph(3, empty, empty, np.array([]), np.array([])))
    assert found.offset_ns.tolist() == [0, 0, 0]
    assert found.part.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("one", "other", "apart", "weight"),
    [([0], [3], [1.0], [1.0]), ([-1], [0], [1.0], [1.0]), ([0], [1], [np.nan], [1.0]),
     ([0], [1], [1.0], [0.0]), ([0], [1], [1.0], [np.inf]), ([0, 1], [1], [1.0], [1.0])],
)  # fmt: skip
def test_a_graph_that_makes_no_sense_is_refused(one, other, apart, weight):
    with pytest.raises(ValueError, match=r"."):
        Graph(3, np.array(one), np.array(other), np.array(apart), np.array(weight))


def stepped(said, i, near):
    """Where clock ``i`` goes; one that has just come takes its neighbours' messages as they are."""
    own = said[i]
    pulls = [Pull(said[j] - apart - (own or 0.0), 0.0, weight)
             for j, apart, weight in near if said[j] is not None]  # fmt: skip
    if not pulls:
        return own
    return (own or 0.0) + step(pulls, DAMPING if own is not None else 1.0).ns


def rounds_until(graph, start, within_ns):
    """Rounds of local steps, each on what the neighbours said a round before, until all are near.

    Near is what the central solution says, but for a constant that all share.
    """
    exact, said = solve(graph).offset_ns, list(start)
    near = [[] for _ in range(graph.clocks)]
    for i, j, apart, w in zip(graph.one, graph.other, graph.apart_ns, graph.weight, strict=True):
        near[i].append((j, apart, w))
        near[j].append((i, -apart, w))
    for number in range(1, 1000):
        said = [stepped(said, i, near[i]) for i in range(graph.clocks)]
        if None not in said and np.ptp(np.array(said) - exact) <= within_ns:
            return number
    pytest.fail("they do not meet")


TEN_A_SECOND_FOR_5_S = 50


@pytest.mark.parametrize("clocks", [2, 3, 8, 128])
def test_a_mesh_that_starts_is_within_5_ns_in_5_s(clocks):
    """Clocks up to two seconds apart; only the first one knows where it is."""
    graph, _ = regular(clocks, min(10, clocks - 1), np.random.default_rng(5), noise=100)
    start = [0.0] + [None] * (clocks - 1)
    assert rounds_until(graph, start, 5.0) <= TEN_A_SECOND_FOR_5_S


def test_after_a_host_joins_or_leaves_all_are_within_5_ns_in_5_s():
    graph, _ = regular(128, 10, np.random.default_rng(7), noise=100)
    stays = (graph.one != 5) & (graph.other != 5)
    without = Graph(128, graph.one[stays], graph.other[stays], graph.apart_ns[stays],
                    graph.weight[stays])  # fmt: skip
    settled, lonely = solve(graph).offset_ns, solve(without).offset_ns
    joins = [None if i == 5 else x for i, x in enumerate(lonely)]
    assert rounds_until(graph, joins, 5.0) <= TEN_A_SECOND_FOR_5_S
    others = [i for i in range(128) if i != 5]
    place = {clock: i for i, clock in enumerate(others)}
    left = Graph(127, np.array([place[i] for i in without.one]),
                 np.array([place[i] for i in without.other]), without.apart_ns,
                 without.weight)  # fmt: skip
    assert rounds_until(left, [settled[i] for i in others], 5.0) <= TEN_A_SECOND_FOR_5_S


def over_nics(rng, hosts, rails, degree, path_ns, cross_ns):
    """Errors at the hosts' own clocks: of a mesh of hosts, and of one whose nodes are PHCs too.

    All clocks show the same; each path and each crossing is off by a noise of its own.
    """
    cross = rng.normal(0, cross_ns, (rails, hosts))
    ends, rail = [], []
    for number in range(rails):
        pairs = regular_graph(rng, hosts, degree)
        ends += pairs
        rail += [number] * len(pairs)
    (one, other), rail = np.array(ends).T, np.array(rail)
    apart = rng.normal(0, path_ns, len(rail))
    carried = apart + cross[rail, one] - cross[rail, other]
    plain = solve(Graph(hosts, one, other, carried, np.ones(len(rail)))).offset_ns
    host, number = np.tile(np.arange(hosts), rails), np.repeat(np.arange(rails), hosts)
    first = hosts * (1 + rail)
    whole = Graph(
        hosts * (1 + rails), np.concatenate((first + one, host)),
        np.concatenate((first + other, hosts * (1 + number) + host)),
        np.concatenate((apart, cross[number, host])),
        np.concatenate((np.full(len(rail), path_ns**-2.0), np.full(len(host), cross_ns**-2.0))),
    )  # fmt: skip
    own = solve(whole).offset_ns[:hosts]
    return plain, own - own.mean()


@pytest.mark.parametrize(("rails", "most"), [(1, 1.0), (4, 1.05)])
def test_paths_carried_over_to_the_hosts_lose_next_to_nothing_to_a_mesh_of_phcs(rails, most):
    squares = np.zeros(2)
    for seed in range(4):
        found = over_nics(np.random.default_rng(seed), 24, rails, 8, 2.0, 20.0)
        squares += [float(errors @ errors) for errors in found]
        if rails == 1:
            assert np.abs(found[0] - found[1]).max() < 1e-3, "the same equations"
    assert np.sqrt(squares[0] / squares[1]) < most + 1e-4
