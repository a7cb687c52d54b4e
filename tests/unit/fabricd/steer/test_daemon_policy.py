"""Policy: weights from states; a hint never removes the last."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.steer.policy import FULL, HALF, LinkInput, PathInput, observed, plan
from telemetry.events import LinkState as S


def weights(links, paths=()):
    result = plan(links, paths)
    return (
        {r.netdev: r.weight for r in result.rails},
        {(p.netdev, p.remote): p.weight for p in result.paths},
    )


def links(*states, carrier=True):
    return [LinkInput(f"rail{i}", s, carrier) for i, s in enumerate(states)]


def test_weights_by_state():
    rails, _ = weights(links(*S))
    assert rails == {
        "rail0": FULL,  # unknown
        "rail1": FULL,  # up
        "rail2": FULL,  # suspect
        "rail3": 0,  # down
        "rail4": 0,  # hold
        "rail5": FULL,  # probation
        "rail6": HALF,  # degraded
        "rail7": 0,  # admin
    }


def test_a_path_that_loses_much_has_half_of_the_weight_after_those_that_have_none():
    paths = [
        PathInput("rail0", "a", ("10.0.0.2", "fd00::2"), S.DEGRADED),
        PathInput("rail0", "b", ("10.0.0.3",), S.DOWN),
        PathInput("rail0", "c", ("10.0.0.4",), S.SUSPECT),
    ]
    said = [(p.remote, p.weight) for p in plan(links(S.UP, S.UP), paths).paths]
    assert said == [("10.0.0.3", 0), ("10.0.0.2", HALF), ("fd00::2", HALF)]


def rails_to(peer, states, since=0):
    return [PathInput(f"rail{i}", peer, (f"10.{i}.0.2",), s, since) for i, s in enumerate(states)]


@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (0.25, 1), (0.5, 2), (0.99, 3), (1.0, 3)])
def test_exceptions_take_their_share_of_the_rails_from_a_peer(share, kept):
    paths = rails_to("a", [S.DOWN, S.HOLD, S.DEGRADED, S.UP])
    assert len(plan(links(*[S.UP] * 4), paths, share=share).paths) == kept


def test_the_rail_that_lost_a_peer_first_is_kept_from_it():
    paths = rails_to("a", [S.DOWN] * 3, since=9)
    paths[2] = replace(paths[2], since_ns=3)
    said = plan(links(*[S.UP] * 4), paths, share=0.25).paths
    assert [p.netdev for p in said] == ["rail2"]


def test_a_dead_port_of_a_peer_is_left_out_from_everywhere():
    """Across rails each link has another way to that peer: none is taken."""
    dead = [PathInput(f"rail{i}", "a", ("10.3.0.2",), S.DOWN) for i in range(4)]
    paths = [*rails_to("a", [S.UP] * 3), *dead]
    assert len(plan(links(*[S.UP] * 4), paths, share=0.25).paths) == 4


def test_links_that_probes_took_are_of_the_share_and_those_without_carrier_are_not():
    paths = rails_to("a", [S.DOWN] * 3 + [S.UP] * 3)
    some = links(*[S.UP] * 4, S.DOWN, S.DOWN)
    assert len(plan(some, paths, share=0.5).paths) == 3
    some[4] = replace(some[4], by_probes=True)
    assert len(plan(some, paths, share=0.5).paths) == 2


def test_never_seen_up_without_carrier_carries_nothing():
    rails, _ = weights([LinkInput("a", S.UNKNOWN, False), LinkInput("b", S.UP)])
    assert rails == {"a": 0, "b": FULL}


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        ((S.DOWN, S.HOLD), {"rail1"}),
        ((S.DOWN, S.ADMIN), {"rail0"}),
        ((S.HOLD, S.HOLD), {"rail0", "rail1"}),
        ((S.DOWN, S.DOWN), {"rail0", "rail1"}),
    ],
)
def test_the_least_bad_carry_when_all_are_out(states, kept):
    rails, _ = weights(links(*states))
    assert {name for name, weight in rails.items() if weight} == kept


def test_carrier_counts_more_than_state_when_all_are_out():
    rails, _ = weights([LinkInput("a", S.HOLD, False), LinkInput("b", S.DOWN, True)])
    assert rails == {"a": 0, "b": FULL}


def path(netdev, peer, state, *addresses):
    return PathInput(netdev, peer, addresses or (f"10.0.{netdev[-1]}.{ord(peer)}",), state)


def test_dead_path_is_an_exception_for_all_addresses_of_that_nic():
    paths = [path("rail0", "a", S.DOWN, "10.0.0.9", "fd00::9"), path("rail1", "a", S.UP)]
    _, out = weights(links(S.UP, S.UP), paths)
    assert out == {("rail0", "10.0.0.9"): 0, ("rail0", "fd00::9"): 0}


def test_the_last_way_to_a_peer_is_not_taken():
    paths = [path("rail0", "a", S.DOWN), path("rail1", "a", S.DOWN), path("rail0", "b", S.DOWN)]
    _, out = weights(links(S.UP, S.UP), paths)
    assert set(out) == {("rail0", "10.0.0.98")}


def test_the_last_carrying_link_to_a_peer_is_not_taken():
    paths = [path("rail0", "a", S.DOWN)]
    _, out = weights(links(S.UP, S.DOWN), paths)
    assert out == {}


def test_observe_takes_nothing():
    wanted = plan(links(S.DOWN, S.UP), [path("rail1", "a", S.DOWN)])
    seen = observed(wanted)
    assert [r.weight for r in seen.rails] == [FULL, FULL]
    assert [r.state for r in seen.rails] == [S.DOWN, S.UP]
    assert seen.paths == ()


_link = st.builds(
    LinkInput, st.sampled_from([f"rail{i}" for i in range(5)]), st.sampled_from(S),
    st.sampled_from([True, False, None]),
)  # fmt: skip
_path = st.builds(
    lambda netdev, peer, state: PathInput(netdev, peer, (f"10.0.0.{ord(peer)}",), state),
    st.sampled_from([f"rail{i}" for i in range(5)]),
    st.sampled_from("abc"),
    st.sampled_from(S),
)


@given(
    st.lists(_link, min_size=1, max_size=5, unique_by=lambda x: x.netdev),
    st.lists(_path, max_size=12, unique_by=lambda p: (p.netdev, p.peer)),
)
def test_something_always_carries_to_everybody(all_links, all_paths):
    result = plan(all_links, all_paths)
    carrying = {r.netdev for r in result.rails if r.weight}
    assert carrying
    gone = {(p.netdev, p.remote) for p in result.paths if not p.weight}
    for peer in "abc":
        assert carrying - {netdev for netdev, remote in gone if remote == f"10.0.0.{ord(peer)}"}
