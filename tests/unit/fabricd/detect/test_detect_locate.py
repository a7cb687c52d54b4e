"""Where is the fault? Patterns over rails, peers and directions, as one host or many see them."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.locate import CLEAN, SILENT, Flow, Kind, Topology, Way, locate

RAILS = 8
PEERS = "abcdefghij"


def ports(me="h", rails=RAILS, peers=PEERS, cross=True):
    out = [((me, r), (p, r)) for r in range(rails) for p in peers]
    if cross:
        out += [((me, r), (peers[r], (r + 1) % rails)) for r in range(rails)]
        out += [((me, r), (peers[(r + 3) % 10], (r + 5) % rails)) for r in range(rails)]
    return out


def seen(hit, pairs=None):
    """Flows of one host; ``hit(source, target)``: the flow fails. What is silent in tells no tx."""
    out = []
    for own, peer in pairs or ports():
        silent = hit(peer, own)
        out.append(Flow(peer, own, SILENT if silent else CLEAN))
        if not silent:
            out.append(Flow(own, peer, SILENT if hit(own, peer) else CLEAN))
    return out


def first(flows, **kwargs):
    blames = locate(flows, **kwargs)
    return (blames[0].kind, blames[0].element, blames[0].way) if blames else None


def test_nothing_fails():
    assert locate(seen(lambda _a, _b: False)) == []
    assert locate([]) == []


def test_own_nic_by_direction():
    own = ("h", 3)
    assert first(seen(lambda a, _b: a == own)) == (Kind.LINK, "h/3", Way.OUT)
    assert first(seen(lambda _a, b: b == own))[:2] == (Kind.LINK, "h/3")
    assert first(seen(lambda a, b: own in (a, b)))[:2] == (Kind.LINK, "h/3")


def test_peer_nic_and_host():
    assert first(seen(lambda a, b: ("c", 3) in (a, b)))[:2] == (Kind.LINK, "c/3")
    assert first(seen(lambda a, b: "c" in (a[0], b[0])))[:2] == (Kind.HOST, "c")


def test_leaf_shows_by_cross_rail_paths():
    def rail3(a, b):
        return 3 in (a[1], b[1])

    assert first(seen(rail3), dark=[("h", 3)])[:2] == (Kind.LEAF, "rail3")
    alone = locate(seen(rail3, ports(cross=False)), dark=[("h", 3)])
    assert alone[0].kind is Kind.UNKNOWN, "from here cable and leaf look the same"
    assert {"leaf rail3", "link h/3"} <= {f"{kind} {name}" for kind, name, _ in alone[0].candidates}


def test_cut_cable_is_not_the_leaf_when_others_reach_it():
    cut = seen(lambda a, b: ("h", 3) in (a, b))
    assert first(cut, dark=[("h", 3)])[:2] == (Kind.LINK, "h/3")


def test_many_hosts_together_blame_the_switch_for_correlated_failures():
    flows, dark = [], []
    for me in "hijkl":
        own = ports(me, peers="abcdefghijklm".replace(me, "")[:10], cross=False)
        flows += seen(lambda a, b: 3 in (a[1], b[1]), own)
        dark.append((me, 3))
    (blame,) = locate(flows, dark=dark)
    assert (blame.kind, blame.element) == (Kind.LEAF, "rail3")


def test_a_spine_takes_some_flows_between_leaves_of_many_pairs():
    leaves = {(p, r): f"p{p in 'fghij'}r{r}" for p in (*PEERS, "h") for r in range(RAILS)}
    topology = Topology(leaves)

    def hit(a, b):
        crosses = leaves[a] != leaves[b]
        return crosses and crc32(repr((a, b)).encode()) % 8 == 0

    blames = locate(seen(hit), topology=topology)
    assert blames[0].kind is Kind.SPINE


def test_a_spine_is_named_though_it_is_open_between_which_leaves():
    """Four of eleven flows between leaves fail, three of them between the same two."""
    bad = {"a0d1", "b0d1", "b2d0", "c1d0"}
    across = ["a1b2", "a2b0", "a2b1", "a2c1", "b0c2", "b1d0", "b2c1", *sorted(bad)]
    flows = [
        Flow((a, int(r)), (b, int(s)), SILENT if a + r + b + s in bad else CLEAN)
        for a, r, b, s in across
    ]
    flows += [
        Flow((a, r), (b, r), CLEAN) for r in range(3) for a in "abcd" for b in "abcd" if a < b
    ]
    (blame,) = locate(flows, certain=True)
    assert (blame.kind, blame.element) == (Kind.SPINE, "between leaves")
    spines = [share for kind, _, share in blame.candidates if kind is Kind.SPINE]
    assert max(spines) < 0.8 < blame.confidence, "no name alone is sure enough"


def test_two_faults_get_two_answers():
    blames = locate(seen(lambda _a, b: b in (("h", 3), ("h", 5))))
    assert {(b.kind, b.element) for b in blames} == {(Kind.LINK, "h/3"), (Kind.LINK, "h/5")}
    assert all(b.confidence > 0.8 for b in blames)


@pytest.mark.parametrize("dark", [["c"], ["c", "c"], ["c"] * RAILS])
def test_a_dead_host_is_no_cable_though_its_last_words_were_of_lost_carriers(dark):
    """Its ports went down one after the other, and it said so of the first ones."""
    ports_of = [(host, rail) for rail, host in enumerate(dark)]
    blames = locate(seen(lambda a, b: "c" in (a[0], b[0])), dark=ports_of, certain=True)
    named = [(b.kind, b.element) for b in blames]
    assert named[0] == (Kind.HOST, "c")
    if len(dark) > 1:
        assert named == [(Kind.HOST, "c")]


def test_two_cables_of_a_host_whose_other_rails_work_are_two_cables():
    cut = {("c", 3), ("c", 5)}
    blames = locate(seen(lambda a, b: bool(cut & {a, b})), dark=cut, certain=True)
    assert {(b.kind, b.element) for b in blames} == {(Kind.LINK, "c/3"), (Kind.LINK, "c/5")}


def test_one_pair_alone_is_no_nic():
    """The peer's NIC is heard by another of our rails: it is the path."""
    pairs = [*ports(cross=False), *(((("h", r)), ("c", 3)) for r in (1, 2, 5, 6))]
    hit = {(("h", 3), ("c", 3)), (("c", 3), ("h", 3))}
    blame = locate(seen(lambda a, b: (a, b) in hit, pairs), certain=True)[0]
    assert blame.kind in (Kind.PATH, Kind.UNKNOWN)


def test_a_port_that_is_dead_one_way_is_no_path_where_the_way_back_fails_with_it():
    """Who is not heard answers no question for its address, and one peer has forgotten it."""
    sick, forgot = ("h", 3), (("b", 3), ("h", 3))
    flows = seen(lambda a, b: a == sick or (a, b) == forgot)
    blames = locate([*flows, Flow(*forgot[::-1], SILENT)], certain=True)
    assert [(b.kind, b.element) for b in blames] == [(Kind.LINK, "h/3")]


def test_gray_evidence_needs_no_silence():
    flows = [Flow((p, 2), ("h", 2), 6.0 if p in "abc" else -0.3) for p in PEERS]
    flows += [Flow((p, r), ("h", r), -1.0) for r in (0, 1, 3) for p in PEERS]
    flows += [Flow(("h", r), ("d", 2), -3.0) for r in (0, 1, 3)]
    flows += [Flow(("h", 2), (p, 2), -3.0) for p in PEERS]
    blame = locate(flows, certain=True)[0]
    assert (blame.kind, blame.element, blame.way) == (Kind.LINK, "h/2", Way.IN)


def test_answer_says_what_and_how_sure():
    (blame,) = locate(seen(lambda _a, b: b == ("h", 3)))
    assert str(blame) == "link h/3 (NIC, cable or port of the leaf), 100 %"
    assert blame.flows == 12


@pytest.mark.parametrize("host", ["h", "a"])
def test_order_of_flows_does_not_matter(host):
    flows = seen(lambda a, b: (host, 1) in (a, b))
    assert locate(flows) == locate(flows[::-1])


ANY_PORT = st.tuples(st.sampled_from("abch"), st.integers(0, 2))


@given(
    st.lists(st.builds(Flow, ANY_PORT, ANY_PORT, st.floats(-1e6, 1e6)), max_size=40),
    st.sets(ANY_PORT, max_size=3),
)
def test_any_input_gives_answers_with_a_confidence(flows, dark):
    blames = locate(flows, dark=dark)
    assert len(blames) <= 6
    assert all(0 <= b.confidence <= 1 for b in blames)
    known = [(b.kind, b.element) for b in blames if b.kind is not Kind.UNKNOWN]
    assert len(known) == len(set(known)), "nothing is blamed twice"
