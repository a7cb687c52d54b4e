"""The Clos that the clock estimator is judged on."""

from collections import Counter

import numpy as np
import pytest

from bench.clock.clos import GAP_NS, PACKET_NS, Fabric, Load, regular_graph
from bench.clock.least_squares import Graph, solve
from bench.clock.simulated import stepped
from bench.clock.synchronized import Sniffed, round_trip
from clocksync.pair.model import SECOND
from fabricd.probes import wire


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


def test_where_hardly_a_packet_finds_all_queues_empty_the_window_grows():
    fabric = Fabric(5, 64, 2, Load(0.9), 14)
    for column in ("estimators", "pairs", "_spine"):
        setattr(fabric, column, getattr(fabric, column)[:6])
    errors = []
    for _ in range(12):
        found = fabric.run(1.0)
        errors += [abs(error) for pair, error in found if pair is not None and fabric.now_s > 8]
    assert max(pair.window_ns for pair, _ in found if pair is not None) == 8 * SECOND
    assert np.median(errors) < 60
    assert max(errors) < 400, "no line is held for long that was a bad one"


def test_the_steps_of_hosts_lead_to_the_solution_of_the_whole_mesh():
    rng = np.random.default_rng(2)
    one, other = np.array(regular_graph(rng, 40, 6)).T
    graph = Graph(40, one, other, rng.normal(0, 50, len(one)), rng.uniform(0.1, 3, len(one)))
    begun = rng.normal(0, 1000, 40)
    off = {}
    for steps in (0, 10, 50):
        far = stepped(graph, begun, steps) - solve(graph).offset_ns
        off[steps] = np.abs(far - far.mean()).max()
    assert off[0] > 500
    assert off[10] < off[0] / 10
    assert off[50] < 0.1


def test_a_round_trip_verdict_is_the_first_answer_that_lacks_the_packet():
    def probe(at_us, own, **said):
        base = dict.fromkeys(name for name, _ in wire.FIELDS)
        base |= {"flags": 0, "path": 4, "host_id": 1 if own else 2,
                 "incarnation": 11 if own else 22,
                 "peer_incarnation": 22 if own else 11, "challenge": 5 if own else 6,
                 "response": 6 if own else 5}  # fmt: skip
        return Sniffed(at_us * 1000, own, base | said)

    sniffed = [
        probe(0, own=True, seq=7, due_time=-1),  # before the black hole
        probe(10_000, own=True, seq=8, due_time=9_990_000),
        probe(10_050, own=False, rx_max=7, rx_bitmap=1),  # may have crossed
        probe(12_600, own=False, rx_max=7, rx_bitmap=1, flags=wire.REPORT),
        probe(13_000, own=False, rx_max=7, rx_bitmap=1, response=99),  # of another path
        probe(20_050, own=False, rx_max=7, rx_bitmap=1),
        probe(30_000, own=True, seq=9, due_time=30_000_000),
        probe(40_000, own=False, rx_max=9, rx_bitmap=0b101),
    ]
    assert round_trip(sniffed, 5_000_000) == [(4, 9_990_000, 20_050_000)], "the second was heard"
