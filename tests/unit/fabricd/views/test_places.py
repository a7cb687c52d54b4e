"""Two faults at once, each kind with each: `explain` and the metric blame nothing else."""

import itertools

import pytest
from fault_world import Fault, World

from fabricd.detect.locate import Blame, Kind, Topology, Way
from fabricd.views.places import LinkPlace

pytestmark = pytest.mark.virtual_time

SOON_S, LONG_S = 10, 30
"""Losses of two ports at once may look like one for some seconds; silence never does."""


def fault(kind, host, rail):
    port, peer = (host, rail), ({"h2": "h3", "h0": "h1", "h3": "h0"}[host], rail)
    return {
        "unplugged": Fault("unplug", port),
        "black hole": Fault("hole", port),
        "black hole rx": Fault("hole", port, "rx"),
        "black hole tx": Fault("hole", port, "tx"),
        "loss": Fault("loss", port, share=0.02),
        "loss rx": Fault("loss", port, "rx", 0.02),
        "loss tx": Fault("loss", port, "tx", 0.02),
        "leaf": Fault("leaf", port),
        "host": Fault("host", port),
        "path": Fault("path", port, peer=peer),
        "path loss": Fault("path", port, share=0.02, peer=peer),
    }[kind]


KINDS = ("unplugged", "black hole", "black hole rx", "black hole tx", "loss", "loss rx", "loss tx",
         "leaf", "host", "path", "path loss")  # fmt: skip
PAIRS = [
    pytest.param(one, other, place, id=f"{one}, {other} at {place[0]}/{place[1]}", marks=marks)
    for one, other in itertools.combinations_with_replacement(KINDS, 2)
    for place, marks in ((("h0", 1), ()), (("h3", 2), (pytest.mark.patient,)))
]


@pytest.mark.parametrize(("one", "other", "place"), PAIRS)
def test_two_faults_at_once_are_the_only_ones_that_are_blamed(one, other, place):
    faults = fault(one, "h2", 1), fault(other, *place)
    world, wrong = World(), []
    world.run(10)
    assert world.wrong([]) == []
    lossy = any("loss" in kind for kind in (one, other))
    world.run(SOON_S, faults, lambda w: wrong.extend([] if lossy else w.wrong(faults)))
    world.run(LONG_S - SOON_S, faults, lambda w: wrong.extend(w.wrong(faults)))
    assert sorted(map(str, set(wrong))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_fault_is_found_by_somebody(kind):
    only = fault(kind, "h2", 1)
    world = World()
    world.run(10)
    world.run(LONG_S, [only])
    found = set()
    for host in world.hosts.values():
        if host.name not in world.dead:
            found |= host.located()[0]
    # One path's losses may be those of the port at either end, as far as either can tell.
    assert found == (set() if kind == "path loss" else only.elements)


@pytest.mark.parametrize("before", ["host", "hole"])
def test_a_host_that_was_silent_is_not_blamed_for_what_a_spine_loses_later(before):
    """Its neighbours count the packets of the silence as lost when it is heard again."""
    world, wrong = World(rails=4), []
    world.run(10)
    ports = [("h2", 1)] if before == "hole" else [("h0", 1), ("h2", 1)]
    world.run(20, [Fault(before, port) for port in ports])
    world.run(20)
    assert world.wrong([]) == []
    spine = Fault("spine", ("h0", 0), share=0.19)
    world.run(25, [spine], lambda w: wrong.extend(w.wrong([spine])))
    assert sorted(map(str, set(wrong))) == []
    found = set().union(*(host.located()[0] for host in world.hosts.values()))
    assert found & spine.elements


def test_rails_that_went_dark_do_not_clear_a_host_that_loses():
    """Their packets of before arrived; the host was called a leaf for that."""
    faults = Fault("leaf", ("h1", 2)), Fault("host loss", ("h0", 0), share=0.05)
    world, wrong = World(rails=4), []
    world.run(10)
    world.run(SOON_S, faults)
    world.run(LONG_S - SOON_S, faults, lambda w: wrong.extend(w.wrong(faults)))
    assert sorted(map(str, set(wrong))) == []
    assert (Kind.HOST, "h0") in world.hosts["h0"].located()[0]


H0, H1, H2 = ("h0", 1), ("h1", 1), ("h2", 1)
PLACE = LinkPlace(H2, [H0, H1, ("h1", 2)], Topology())


def blame(kind, element, *candidates):
    return Blame(kind, element, Way.BOTH, 0.9, 3, 3, tuple((*c, 0.3) for c in candidates))


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (blame(Kind.LINK, "h2/1"), "here"),
        (blame(Kind.HOST, "h2"), "here"),
        (blame(Kind.LEAF, "rail1"), "here"),
        (blame(Kind.SPINE, "rail1-rail2"), "here"),
        (blame(Kind.PATH, "h0/1-h2/1"), "here"),
        (blame(Kind.PATH, "h1/2-h2/1"), "here"),
        (blame(Kind.UNKNOWN, "", (Kind.LEAF, "x"), (Kind.LINK, "h2/1")), "here"),
        (blame(Kind.LINK, "h0/1"), "beyond"),
        (blame(Kind.HOST, "h1"), "beyond"),
        (blame(Kind.LEAF, "rail2"), "beyond"),
        (blame(Kind.LINK, "h2/2"), ""),
        (blame(Kind.LINK, "h3/1"), ""),
        (blame(Kind.HOST, "h3"), ""),
        (blame(Kind.PATH, "h0/1-h1/1"), ""),
        (blame(Kind.SPINE, "rail2-rail3"), ""),
        (blame(Kind.UNKNOWN, "", (Kind.LINK, "h0/1"), (Kind.LINK, "h1/1")), ""),
    ],
)  # fmt: skip
def test_a_fault_is_on_the_link_or_at_a_far_end_or_of_no_concern(what, where):
    assert PLACE.here([what]) == ([what] if where == "here" else [])
    assert PLACE.beyond([what]) == ([what] if where == "beyond" else [])


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ("unplugged", "unplugged", ("h0", 1)),
        ("unplugged", "black hole", ("h0", 1)),
        ("black hole", "black hole", ("h3", 2)),
        ("leaf", "leaf", ("h3", 2)),
        ("host", "unplugged", ("h0", 1)),
        ("loss", "unplugged", ("h0", 1)),
    ],
)
def test_both_of_two_faults_are_found(one, other, place):
    """Two dead cables of one leaf were the leaf, and then unknown, for they share a flow."""
    faults = fault(one, "h2", 1), fault(other, *place)
    world = World()
    world.run(10)
    world.run(LONG_S, faults)
    found = set()
    for host in world.hosts.values():
        if host.name not in world.dead:
            found |= host.located()[0]
    assert found == faults[0].elements | faults[1].elements
