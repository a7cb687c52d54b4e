"""The Clos that the clock estimator is judged on."""

from collections import Counter

import numpy as np
import pytest

from bench.clock.clos import GAP_NS, PACKET_NS, Fabric, Load, regular_graph
from clocksync.mesh import solve


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_a_port_is_empty_and_makes_wait_as_long_as_pollaczek_and_khinchine_say(share):
    first, later = Load(share, burst=4).waits(np.random.default_rng(1), 200_000)
    assert np.mean(first > 0) == pytest.approx(share, abs=0.01)
    mean = share * 4 * PACKET_NS / 2 / (1 - share)
    assert first.mean() == pytest.approx(mean, rel=0.03)
    assert later.min() >= 0
    alike = np.corrcoef(first, later)[0, 1]
    assert 0.1 < alike < 1, f"a gap of {GAP_NS} ns later much of it is still there"


def test_probes_of_a_class_of_their_own_wait_for_one_packet_at_most():
    both = np.concatenate(Load(0.9, own_class=True).waits(np.random.default_rng(1), 50_000))
    assert np.mean(both > 0) == pytest.approx(0.9, abs=0.01)
    assert both.max() < PACKET_NS


def test_each_host_has_about_as_many_paths():
    pairs = regular_graph(np.random.default_rng(2), 40, 10)
    assert len(pairs) == len(set(pairs)) == 200
    count = Counter(end for pair in pairs for end in pair)
    assert set(count) == set(range(40))
    assert min(count.values()) >= 5
    assert all(one < other for one, other in pairs)


def test_without_load_all_clocks_are_known_to_nanoseconds_within_their_bounds():
    fabric = Fabric(3, 24, 6, Load(0.0), 8)
    fabric.run(3.0)
    found = fabric.run(1.0)
    for pair, error in found:
        assert pair is not None
        assert abs(error) <= pair.bound_ns(pair.seen_ns)
    pairs = np.abs([error for _, error in found])
    left = solve(fabric.graph(found)).offset_ns
    one, other = np.triu_indices(24, 1)
    assert np.median(pairs) < 4
    assert np.median(np.abs(left[one] - left[other])) < 4


def test_load_makes_it_worse_and_the_mesh_makes_it_better():
    fabric = Fabric(4, 24, 8, Load(0.8), 8)
    fabric.run(3.0)
    found = fabric.run(1.0)
    pairs = np.abs([error for pair, error in found if pair is not None])
    left = solve(fabric.graph(found)).offset_ns
    one, other = np.triu_indices(24, 1)
    assert len(pairs) > 80
    assert np.median(pairs) > 2
    assert np.percentile(np.abs(left[one] - left[other]), 99) < 0.7 * np.percentile(pairs, 99)
