"""Part *located* of the detection bench: what may be named, and the score that tells it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.detect.live_located import made
from bench.detect.located_alerts import misleading, recorded
from bench.detect.located_faults import (
    SORTS,
    Element,
    Size,
    pairs,
    place,
    places,
    possible,
    singles,
)
from bench.detect.located_score import (
    Said,
    Trial,
    blame,
    explained,
    is_unsure,
    rows,
    said,
    series,
)
from fabricd.detect.locate import Blame, Kind, Way
from lab.faults import catalog
from lab.topology import Topology

SIZE = Size(hosts=4, rails=4)
LAB = Topology("x", hosts=4, rails=4)


def fault(word, where):
    """Of the sort that begins so, at ``h1/2``, ``h1``, ``leaf 1`` or ``spine 0``."""
    part, number = ("link", "") if "/" in where else where.split() if " " in where else ("host", "")
    sort = next(s for s in SORTS if s.word == word and s.part == part)
    if part == "link":
        host, rail = where.split("/")
        return place(sort, (host, int(rail)), SIZE)
    return place(sort, int(number) if number else where, SIZE)


def elements(*texts):
    return frozenset(Element(*text.split(" ", 1)) for text in texts)


def trial(*injected, metric=(), host="h0", **fields):
    return Trial(injected, (Said(host, elements(*metric)),), **fields)


def values(table):
    return {row.name: row.got for row in table}


def test_every_fault_of_the_catalog_is_injected_at_every_kind_of_place():
    assert {type(made(place)).__name__ for sort in SORTS for place in places(sort, SIZE)[:1]} == {
        name for name in catalog.__all__ if name not in {"Direction", "Fault", "Site"}
    }
    for sort in SORTS:
        for injected in places(sort, SIZE):
            target = LAB.target(injected.target)
            assert isinstance(target, made(injected).targets), injected
    black = {s.part for s in SORTS if s.word == "blackhole"}
    assert black == {"link", "leaf", "spine", "host"}


def test_what_a_fault_is_made_with():
    both = made(fault("blackhole", "h1/2"))
    one = made(fault("loss 20 rx", "h1/2"))
    assert (both.direction, both.percent) == ("both", 100)
    assert (one.direction, one.percent, one.target_text) == ("rx", 20, "h1:rail2")
    assert made(fault("blackhole tx", "h1/2")).direction == "tx"
    flap = made(fault("flap", "h1/2"))
    assert flap.count * flap.period_ms / 1e3 >= 20, "it does not end before the last host was asked"


def test_singles_are_of_all_sorts_and_pairs_are_two_faults():
    alone = singles(SIZE, 3, seed=1)
    assert {f.sort for f in alone} == set(SORTS)
    assert len(set(alone)) == len(alone)
    assert sum(f.sort.part == "leaf" for f in alone) == 9
    both = pairs(SIZE, 200, seed=1)
    assert len(both) == 200
    assert both == pairs(SIZE, 200, seed=1) != pairs(SIZE, 200, seed=2)
    assert all(possible(*drawn) and one.target != other.target for one, other in both
               for drawn in [(one, other)])  # fmt: skip
    assert {f.sort for pair in both for f in pair} == set(SORTS)
    assert any(one.hides(other) or other.hides(one) for one, other in both)


@pytest.mark.parametrize(
    ("one", "other", "is_possible"),
    [
        (("carrier", "h1/2"), ("blackhole", "h2/2"), True),
        (("carrier", "h1/2"), ("loss 3", "h1/2"), False),
        (("leaf", "leaf 2"), ("carrier", "h1/2"), True),
        (("loss 5", "leaf 2"), ("carrier", "h1/2"), False),
        (("loss 5", "h1"), ("loss 3", "h1/2"), False),
        (("kill", "h1"), ("leaf", "leaf 1"), True),
        (("blackhole", "spine 0"), ("loss 10", "spine 1"), False),
        (("blackhole", "spine 0"), ("reset", "h1/0"), True),
    ],
)
def test_which_pairs_are_two_faults(one, other, is_possible):
    assert possible(fault(*one), fault(*other)) is is_possible
    assert possible(fault(*other), fault(*one)) is is_possible


def test_what_is_hidden():
    leaf, cable = fault("leaf", "leaf 2"), fault("carrier", "h1/2")
    host = fault("freeze", "h1")
    assert leaf.hides(cable)
    assert host.hides(cable)
    assert not cable.hides(leaf)
    assert not leaf.hides(host)
    assert not fault("loss 5", "leaf 2").hides(cable)
    assert not leaf.hides(fault("blackhole", "spine 0")), "paths between other leaves show it"
    assert [str(f) for f in trial(leaf, cable).seen()] == ["leaf leaf2"]


@pytest.mark.parametrize(
    ("injected", "metric", "found", "exact", "wrong"),
    [
        (("carrier", "h1/2"), ["link h1/2"], 1, 1, 0),
        (("carrier", "h1/2"), [], 0, 0, 0),
        (("carrier", "h1/2"), ["link h1/3"], 0, 0, 1),
        (("carrier", "h1/2"), ["path h0/2-h1/2"], 1, 0, 1),
        (("carrier", "h1/2"), ["host h1"], 1, 0, 1),
        (("leaf", "leaf 1"), ["leaf rail1"], 1, 1, 0),
        (("leaf", "leaf 1"), ["link h0/1", "link h2/1"], 1, 0, 2),
        (("kill", "h3"), ["host h3", "leaf rail0"], 1, 1, 1),
        (("kill", "h3"), ["link h2/0"], 0, 0, 1),
        (("blackhole", "spine 0"), ["spine rail0-rail2"], 1, 1, 0),
        (("blackhole", "spine 0"), ["spine between leaves"], 1, 1, 0),
        (("blackhole", "spine 0"), ["path h0/0-h1/1"], 1, 0, 1),
        (("blackhole", "spine 0"), ["link h0/0"], 0, 0, 1),
        (("spine", "spine 1"), [], 1, 1, 0),
        (("spine", "spine 1"), ["spine between leaves"], 0, 0, 1),
        (("reset", "h1/2"), ["link h1/2"], 1, 0, 1),
    ],
)
def test_one_answer(injected, metric, found, exact, wrong):
    told = trial(fault(*injected), metric=metric)
    [one] = told.injected
    assert (told.found(one), told.exact(one), len(told.wrong())) == (found, exact, wrong)


def test_a_state_names_its_link_unless_something_is_placed_there():
    bad = Said("h0", bad=frozenset({1, 2}))
    assert bad.named() == elements("link h0/1", "link h0/2")
    leaf = Said("h0", elements("leaf rail1"), bad=frozenset({1}))
    assert leaf.named() == elements("leaf rail1")
    other = Said("h0", elements("leaf rail2", "link h1/1"), bad=frozenset({1}))
    assert other.named() == elements("leaf rail2", "link h1/1", "link h0/1")
    placed = Said("h0", here={1: elements("path h0/1-h2/1")}, bad=frozenset({1}))
    assert placed.named() == elements("path h0/1-h2/1")
    doubted = Said("h0", bad=frozenset({1, 2}), unsure=frozenset({1}))
    assert doubted.named() == elements("link h0/2"), "explain says that it is not known"


def test_a_host_is_named_by_more_than_half_of_the_others():
    def silent(*pairs):
        return Trial((fault("kill", "h3"),), tuple(Said(h, silent=frozenset(s)) for h, s in pairs))

    assert silent(("h0", ["h3"]), ("h1", ["h3"]), ("h2", [])).named() == elements("host h3")
    assert silent(("h0", ["h3"]), ("h1", []), ("h2", [])).named() == frozenset()
    assert silent(("h0", ["h3"]), ("h1", [])).named() == frozenset(), "half is no majority"


def test_explain_names_what_is_so_and_on_that_link():
    two = (fault("carrier", "h0/1"), fault("loss 3", "h2/1"))

    def asked(host, here=None, beyond=None):
        rows_of = [{1: elements(*texts)} if texts else {} for texts in (here, beyond)]
        return Trial(two, (Said(host, frozenset(), *rows_of),)).misplaced()

    assert asked("h0", ["link h0/1"], ["link h2/1"]) == []
    assert asked("h2", ["link h0/1"]) == ["h2 rail1 explain: link h0/1"], "true, but not here"
    assert asked("h2", ["link h2/1"], ["link h3/1"]) == ["h2 rail1 far ends: link h3/1"]
    assert asked("h0", ["leaf rail1"]) == ["h0 rail1 explain: leaf rail1"]


@given(
    st.sampled_from(["link h1/3", "host h2", "leaf rail1", "leaf my (old) leaf", "spine a-b",
                     "spine between leaves", "path h0/1-h2/3", "host gpu-01, rack 3"]),
    st.sampled_from(Way),
    st.floats(0.8, 1),
)  # fmt: skip
def test_answers_of_explain_are_read_as_they_are_printed(text, way, sure):
    part, name = text.split(" ", 1)
    shown = str(Blame(Kind(part), name, way, sure))
    assert blame(shown) == Element(part, name)
    unknown = Blame(Kind.UNKNOWN, "", candidates=((Kind(part), name, sure),))
    assert explained({"located": [shown, str(unknown), "unknown"]}, "located") == elements(text)
    assert is_unsure({"located": [shown, str(unknown)]})
    assert not is_unsure({"located": [shown]})


def test_metrics_are_read():
    text = (
        "# HELP fabricd_located x\n"
        'fabricd_located{part="leaf",element="rail1",direction="both"} 1\n'
        'fabricd_link_state{link="rail1",rail="1"} 3\n'
        'fabricd_link_state{link="rail2",rail="2"} 1\n'
        'fabricd_link_state{link="rail3",rail="3"} 7\n'
        'fabricd_peer_silent{peer="h3"} 1\n'
        'fabricd_peer_silent{peer="h2"} 0\n'
    )
    one = said("h0", series(text))
    assert one == Said("h0", elements("leaf rail1"), bad=frozenset({1}), silent=frozenset({"h3"}))
    tracks = recorded({"h0": text, "h1": None})
    ups = {dict(t.labels)["instance"]: t.values[0] for t in tracks
           if dict(t.labels)["__name__"] == "up"}  # fmt: skip
    assert ups == {"h0": 1, "h1": 0}
    assert len(tracks) == 8
    assert all(dict(t.labels)["job"] == "fabricd" for t in tracks)
    assert all(t.at(when) == t.values[0] for t in tracks for when in (0, 5, 10))


@pytest.mark.parametrize(
    ("alert", "fair"),
    [
        ("FabricLinkDown instance=h1 link=rail2", True),
        ("FabricLinkDown instance=h1 link=rail1", False),
        ("FabricLinkDown instance=h0 link=rail3", True),
        ("FabricFaultLocated part=leaf element=rail3", True),
        ("FabricFaultLocated part=leaf element=rail2", False),
        ("FabricFaultLocated part=path element=h0/2-h1/2", False),
        ("FabricPeerSilent peer=h1", False),
        ("FabricRailsLow instance=h1", True),
        ("FabricRailsLow instance=h0", False),
        ("FabricDaemonDown instance=h1", False),
        ("FabricClockDown instance=h1", False),
    ],
)
def test_which_alerts_are_for_a_cable_and_a_leaf(alert, fair):
    injected = (fault("carrier", "h1/2"), fault("leaf", "leaf 3"))
    told = misleading([tuple(alert.split(" "))], injected, SIZE.rails)
    assert told == (frozenset() if fair else frozenset({alert}))


def test_alerts_of_a_dead_host():
    dead = (fault("kill", "h3"),)
    alerts = [("FabricPeerSilent", "peer=h3"), ("FabricDaemonDown", "instance=h3")]
    assert misleading(alerts, dead, SIZE.rails) == frozenset()
    alive = (fault("blackhole", "h3"),)
    assert misleading(alerts, alive, SIZE.rails) == {"FabricDaemonDown instance=h3"}


def test_the_table_counts():
    right = trial(fault("carrier", "h1/2"), metric=["link h1/2"],
                  seconds={Element("link", "h1/2"): 2.0})  # fmt: skip
    missed = trial(fault("carrier", "h1/2"))
    more = trial(fault("kill", "h3"), metric=["host h3", "leaf rail0"],
                 seconds={Element("host", "h3"): 21.0})  # fmt: skip
    inexact = trial(fault("leaf", "leaf 1"), metric=["link h0/1", "link h2/1"])
    both = trial(
        fault("leaf", "leaf 1"), fault("carrier", "h1/1"), metric=["leaf rail1"],
        alerts=frozenset({"FabricFaultLocated part=leaf element=rail2"}),
        ever=elements("path h0/1-h2/1"),
    )  # fmt: skip
    got = values(rows([right, missed, more, inexact], [both, right]))
    assert got["located faults: precision"] == pytest.approx(100 * 4 / 7, abs=0.01)
    assert got["located faults: recall"] == pytest.approx(100 * 5 / 6, abs=0.01)
    assert got["located faults: right element"] == pytest.approx(100 * 4 / 5)
    assert got["located faults, one at a time: recall"] == 75
    assert got["located faults, two at once: precision"] == 100
    assert got["two at once: pairs of which a host blames what is not so"] == 0
    assert got["two at once: pairs of which an alert blames what is not so"] == 1
    assert got["located: faults of which something else was named for a moment"] == 1
    time = next(r for r in rows([right, more], []) if r.name.endswith("named first after, median"))
    assert (time.got, time.note) == (2.0, "1 of 2 within 20 s, latest 21.0")


def test_a_pair_of_which_one_host_says_what_is_not_so_is_one_too_many():
    one, other = fault("carrier", "h0/1"), fault("loss 3", "h2/1")
    told = Trial((one, other), (
        Said("h0", elements("link h0/1"), {1: elements("link h0/1")}),
        Said("h2", elements("link h2/1"), {1: elements("link h0/1")}),
    ))  # fmt: skip
    table = rows([], [told])
    [row] = [
        r for r in table if r.name == "two at once: pairs of which a host blames what is not so"
    ]
    assert (row.got, row.ok) == (1, False)
    assert "h2 rail1 explain: link h0/1" in row.note
