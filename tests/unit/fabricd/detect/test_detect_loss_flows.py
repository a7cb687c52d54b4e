"""Losses by flow: an element is blamed at the rate that all it carries shows, and nobody else."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.locate import ANY_SPINE, Kind, locate
from fabricd.detect.loss_flows import RATES, flow
from fabricd.detect.loss_rules import LossCount, LossRules

RULES = LossRules()
A, B = ("a", 0), ("b", 0)
NONE = LossCount()


def ratios(lost, packets, queued=NONE):
    one = flow(A, B, LossCount(lost, packets), queued, RULES)
    return dict(zip(RATES, one.at, strict=True))


def near(rate):
    return min(RATES, key=lambda known: abs(np.log(known / rate)))


def test_a_flow_speaks_for_its_own_rate_and_those_beside_it():
    at = ratios(50, 1000)
    assert at[near(0.05)] > RULES.places.most - 1
    assert min(at[near(0.04)], at[near(0.06)]) > RULES.places.bad
    assert at[near(0.004)] == 0, "it loses more: another fault may be on its way"
    assert at[near(0.5)] == -RULES.places.most, "it would have lost far more"


def test_few_packets_leave_the_rate_open():
    at = ratios(2, 40)
    assert at[near(0.016)] > RULES.places.bad
    assert at[near(0.128)] > RULES.places.bad
    assert at[1.0] < 0


def test_a_flow_without_losses_speaks_against_rates_that_would_have_shown():
    at = ratios(0, 100)
    assert -0.1 < at[near(0.001)] < 0
    assert at[near(0.2)] == -RULES.places.most


def test_what_full_queues_drop_is_well():
    at = ratios(0, 0, LossCount(10, 1000))
    assert max(at.values()) <= 0
    assert min(at.values()) == -RULES.places.most
    assert ratios(0, 0, LossCount(300, 1000))[near(0.3)] == RULES.places.most


COUNT = st.builds(
    lambda packets, share: LossCount(packets * share // 1, packets),
    st.integers(0, 10**9), st.floats(0, 1),
)  # fmt: skip


@given(COUNT, COUNT)
def test_any_counts_give_ratios_within_what_one_flow_may_say(calm, queued):
    one = flow(A, B, calm, queued, RULES)
    most = RULES.places.most
    assert len(one.at) == len(RATES)
    assert all(-most <= ratio <= most for ratio in (one.ratio, *one.at))
    assert max(one.at) <= max(one.ratio, 0.0) + 1e-9


# -- hosts x rails x spines, as one host sees them --------------------------------------------

HOSTS, RAILS = "abcd", range(4)
TRAINS, SINGLE = 100, 25
"""Packets a second of a path with clock trains, and of one without."""


def paths(me, dice):
    """Two paths with trains and one without on each rail, and two across rails."""
    others = [host for host in HOSTS if host != me]
    for rail in RAILS:
        for place, peer in enumerate(others):
            yield (me, rail), (peer, rail), SINGLE if place == rail % 3 else TRAINS
        away = [rail_there for rail_there in RAILS if rail_there != rail]
        for _ in range(2):
            yield (me, rail), (dice.choice(others), int(dice.choice(away))), SINGLE


def seen(me, seconds, drops, dice, noise=2e-6):
    """The flows of one host; ``drops(source, target)``: the share that is lost."""
    out = {}
    for own, peer, rate in paths(me, dice):
        for ends in ((own, peer), (peer, own)):
            packets = int(rate * seconds)
            lost = dice.binomial(packets, 1 - (1 - drops(*ends)) * (1 - noise))
            out[ends] = flow(*ends, LossCount(lost, packets), NONE, RULES)
    return list(out.values())


def spine(share, dice):
    over = {}
    return lambda a, b: share * (a[1] != b[1] and over.setdefault((a, b), bool(dice.integers(2))))


def host(name, share):
    return lambda a, b: share * (name in (a[0], b[0]))


def leaf(rail, share):
    return lambda a, b: share * (rail in (a[1], b[1]))


def link(port, share, ways=(0, 1)):
    return lambda a, b: share * any((a, b)[way] == port for way in ways)


def both(one, other):
    return lambda a, b: 1 - (1 - one(a, b)) * (1 - other(a, b))


def named(flows):
    blames = locate(flows, certain=True, rules=RULES.places)
    sure = {Kind.PATH: RULES.confidence_path, Kind.LINK: 0.8}
    return {
        (b.kind, b.element) for b in blames
        if b.kind is not Kind.UNKNOWN and b.pairs >= 2
        and b.confidence >= sure.get(b.kind, RULES.confidence_shared)
    }  # fmt: skip


@pytest.mark.parametrize(("share", "seconds"), [(0.19, 3), (0.19, 10), (0.05, 20), (1.0, 3)])
def test_a_spine_s_losses_are_no_host_s_and_no_port_s(share, seconds):
    """Of a peer's packets a twentieth may be lost so: all of them across rails."""
    for seed in range(40):
        dice = np.random.default_rng(seed)
        found = named(seen("a", seconds, spine(share, dice), dice))
        assert {kind for kind, _ in found} <= {Kind.SPINE, Kind.PATH}, (seed, found)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
@pytest.mark.parametrize(
    ("make", "element"),
    [
        (lambda share: host("a", share), (Kind.HOST, "a")),
        (lambda share: host("c", share), (Kind.HOST, "c")),
        (lambda share: leaf(2, share), (Kind.LEAF, "rail2")),
        (lambda share: link(("a", 2), share), (Kind.LINK, "a/2")),
        (lambda share: link(("a", 2), share, (1,)), (Kind.LINK, "a/2")),
    ],
    ids=["own host", "peer", "leaf", "link", "link rx"],
)
def test_what_loses_is_named_and_nothing_else_is(make, element, share):
    times = 20
    found = []
    for seed in range(times):
        dice = np.random.default_rng(seed)
        found.append(named(seen("a", 10, make(share), dice)))
        assert found[-1] <= {element}, seed
    assert found.count({element}) >= times * 0.8


PAIRS = [
    (host("c", 0.05), spine(0.19, np.random.default_rng(1)), {(Kind.HOST, "c")}),
    (link(("a", 1), 0.03), spine(0.19, np.random.default_rng(2)), {(Kind.LINK, "a/1")}),
    (leaf(0, 0.1), link(("a", 1), 0.2), {(Kind.LEAF, "rail0"), (Kind.LINK, "a/1")}),
    (leaf(0, 0.1), host("a", 0.05), {(Kind.LEAF, "rail0"), (Kind.HOST, "a")}),
    (link(("a", 1), 0.01), host("c", 0.05), {(Kind.LINK, "a/1"), (Kind.HOST, "c")}),
]


@pytest.mark.parametrize(("one", "other", "true"), PAIRS)
def test_two_losses_at_once_blame_nobody_else(one, other, true):
    right = 0
    for seed in range(20):
        dice = np.random.default_rng(seed)
        found = named(seen("a", 15, both(one, other), dice))
        wrong = {name for name in found - true if name[0] not in (Kind.SPINE, Kind.PATH)}
        assert not wrong, seed
        right += bool(found & true)
    assert right >= 16


def test_a_port_s_rate_does_not_hide_another_s_that_is_higher():
    """What loses more than an element's rate is not explained by it."""
    drops = both(leaf(0, 0.02), link(("a", 0), 0.3))
    dice = np.random.default_rng(3)
    assert (Kind.LINK, "a/0") in named(seen("a", 15, drops, dice))


def test_all_pairs_of_a_mesh_know_the_spine():
    flows = []
    dice = np.random.default_rng(5)
    drops = spine(0.19, dice)
    for me in HOSTS:
        flows += seen(me, 10, drops, dice)
    merged = {(one.source, one.target): one for one in flows}
    assert (Kind.SPINE, ANY_SPINE) in named(list(merged.values())) or any(
        kind is Kind.SPINE for kind, _ in named(list(merged.values()))
    )


def test_rates_cover_all_that_can_be_lost():
    assert RATES[-1] == 1.0
    assert all(b <= 1.5 * a for a, b in pairwise(RATES))
