"""Several hosts' views together: what neighbours say, and what was never heard."""

import contextlib
import json
from dataclasses import replace

import pytest
from engine_host import MS, SEC, Host, config
from hypothesis import given
from hypothesis import strategies as st
from test_detect_evidence import row
from typer.testing import CliRunner

from fabricd.cli import app
from fabricd.detect import evidence
from fabricd.detect.evidence import PEER_REPORTS_NS, Places, path_views
from fabricd.detect.localization import Localization
from fabricd.detect.locate import CLEAN, SILENT, Kind, Topology
from fabricd.detect.neighbours import PeerReport, ReportKind, flows, near, ports, read
from fabricd.detect.neighbours import Reachability as Seen
from fabricd.detect.observations import ObservationError, answer, blame_document, collect
from fabricd.detect.unseen import LASTS_NS, Ends, Unseen
from telemetry.events import LinkState as S


def packed(kind, rail, peer_rail, heard, told, peer):
    return kind | rail << 4 | peer_rail << 10 | heard << 16 | told << 20 | peer << 32


def test_words_are_as_the_prober_packs_them():
    rows = [
        (7, packed(1, 3, 5, 2, 0, 9), 11),
        (7, packed(2, 31, 0, 2, 0, 0), 12),
        (8, packed(1, 0, 0, 1, 1, 0xFEDCBA98), 13),
        (7, packed(3, 0, 0, 1, 1, 9), 14),  # a kind of another version
        (7, packed(1, 0, 0, 9, 1, 9), 15),
    ]
    first, second, third = read(rows, {7: "a", 9: "h"})
    assert first == PeerReport("a", ReportKind.PATH, 3, "h", 5, Seen.SILENT, Seen.UNKNOWN, 11)
    assert (second.kind, second.rail, second.peer, second.heard) == (ReportKind.PORT, 31, "", 2)
    assert (third.reporter, third.peer) == ("#00000008", "#fedcba98")


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), max_size=20))
def test_any_word_is_read_or_left_out(rows):
    reports = read(rows, {})
    assert len(reports) <= len(rows)
    flows(reports, well_since=0)
    ports(reports)


def report(reporter, rail, peer, heard, told=Seen.UNKNOWN, at=0, kind=ReportKind.PATH):
    return PeerReport(reporter, kind, rail, peer, rail, heard, told, at)


def test_a_word_is_two_flows_and_old_good_news_is_none():
    said = [report("a", 1, "b", Seen.WELL, Seen.SILENT, at=5)]
    assert [(f.source, f.target, f.ratio) for f in flows(said, well_since=5)] == [
        (("b", 1), ("a", 1), CLEAN), (("a", 1), ("b", 1), SILENT),
    ]  # fmt: skip
    assert [f.ratio for f in flows(said, well_since=6)] == [SILENT]
    assert (
        flows([report("a", 1, "b", Seen.GONE), report("a", 1, "b", Seen.DOUBT)], well_since=0) == []
    )
    assert ports([report("a", 2, "", Seen.SILENT, kind=ReportKind.PORT)]) == ({("a", 2)}, set())
    assert len(near(flows(said, well_since=0), [("c", 1)])) == 2
    assert near(flows(said, well_since=0), [("c", 2)]) == []


def others(bad, peers="abc", rails=4, at=0):
    """What a, b and c say of each other and of h; ``bad(host, rail)``: that port is silent."""
    out = []
    for reporter in peers:
        for peer in (*peers, "h"):
            if peer == reporter:
                continue
            for rail in range(rails):
                seen = Seen.SILENT if bad(reporter, rail) or bad(peer, rail) else Seen.WELL
                out.append(report(reporter, rail, peer, seen, at=at))
    return out


def settle(host, places, bad, seconds=6):
    told = []
    for _ in range(seconds * 2):
        host.run(SEC // 2)
        reports = others(bad, at=host.now)
        told += places.look(host.views(), host.engine, host.now, reports)
    return told


def test_neighbours_tell_the_own_cable_from_the_leaf():
    """Alone this host says "unknown: leaf or link" of both (test_detect_evidence)."""
    host, places = Host(), Places("h")
    host.silence(2)
    (blame,) = settle(host, places, lambda who, rail: (who, rail) == ("h", 2))
    assert (blame.kind, blame.element) == (Kind.LINK, "h/2")
    assert blame.confidence >= 0.8
    host, places = Host(), Places("h")
    host.silence(2)
    (blame,) = settle(host, places, lambda _, rail: rail == 2)
    assert (blame.kind, blame.element) == (Kind.LEAF, "rail2")
    assert blame.confidence >= 0.8


def test_a_peers_port_is_blamed_and_not_the_path_to_it():
    host, places = Host(), Places("h")
    host.silence((1, "b"))
    (blame,) = settle(host, places, lambda who, rail: (who, rail) == ("b", 1))
    assert (blame.kind, blame.element) == (Kind.LINK, "b/1")
    host, places = Host(), Places("h")
    host.silence((1, "b"))
    (blame,) = settle(host, places, lambda *_: False)
    assert blame.kind is Kind.PATH


def test_a_fault_that_stays_is_not_thought_about_again(monkeypatch):
    host, places, asked = Host(), Places("h"), []
    real = evidence.locate
    monkeypatch.setattr(evidence, "locate", lambda *a, **k: asked.append(1) or real(*a, **k))
    host.silence(2)
    settle(host, places, lambda who, rail: (who, rail) == ("h", 2), seconds=6)
    steady = len(asked)
    assert steady < 8
    settle(host, places, lambda who, rail: (who, rail) == ("h", 2), seconds=6)
    assert len(asked) == steady
    assert [b.element for b in places.now] == ["h/2"]
    settle(host, places, lambda who, rail: rail == 2, seconds=6)
    assert len(asked) > steady, "somebody sees more"
    assert [(b.kind, b.element) for b in places.now] == [(Kind.LEAF, "rail2")]


def test_nothing_is_told_before_the_neighbours_could_say_it():
    host, places = Host(), Places("h")
    host.silence(2)
    host.run(100 * MS)
    begun = host.now
    while not places.look(host.views(), host.engine, host.now, others(lambda _, r: r == 2)):
        host.run(100 * MS)
    assert host.now - begun >= PEER_REPORTS_NS


def test_a_dark_port_that_a_neighbour_tells_of():
    host, places = Host(), Places("h")
    host.silence((1, "b"))
    told = []
    for _ in range(10):
        host.run(SEC // 2)
        reports = [report("b", 1, "", Seen.SILENT, kind=ReportKind.PORT, at=host.now)]
        told += places.look(host.views(), host.engine, host.now, reports)
    assert [(b.kind, b.element) for b in told] == [(Kind.LINK, "b/1")]


# -- never seen --------------------------------------------------------------------------------


def unseen_views(host, never):
    engine = host.engine
    rows = [
        row(p.index, p.spec.link, last_heard_ns=0 if (p.spec.link, p.spec.peer) in never else SEC)
        for p in engine.paths
    ]
    ends = [
        Ends(p.spec.link, p.spec.peer_rail, (p.spec.link, p.spec.peer) not in never, carrier=True)
        for p in engine.paths
    ]
    return path_views(rows, engine.paths), ends


def judged(never, reports, host=None):
    unseen = Unseen("h")
    views, ends = unseen_views(host or Host(), never)
    assert unseen.judge(views, ends, [], SEC).links == {}
    first = unseen.judge(views, ends, reports, SEC)
    assert (first.links, first.paths) == ({}, {}), "the two ends do not start at the same time"
    return unseen.judge(views, ends, reports, SEC + LASTS_NS)


def expect(*peers, rail=1, heard=Seen.UNKNOWN, others_heard=True):
    out = [report(p, rail, "h", heard, at=SEC) for p in peers]
    if others_heard:
        out += [report(p, rail, "z", Seen.WELL, at=SEC) for p in peers]
    return out


def test_a_link_never_heard_is_no_failure_unless_two_peers_say_so():
    never = {(1, p) for p in "abc"}
    assert judged(never, []).links == {}
    assert judged(never, expect("a")).links == {}
    assert judged(never, expect("a", "b", others_heard=False)).links == {}, "a leaf not built yet"
    assert judged(never, expect("a", "b", heard=Seen.GONE)).links == {}
    assert judged(never, expect("a", "b", heard=Seen.WELL)).links == {}
    assert judged(never, expect("a", "b", rail=2)).links == {}
    found = judged(never, expect("a", "b"))
    assert found.links == {1: "never heard anything, though a, b probe it"}
    assert found.paths == {}


def test_a_peer_that_has_not_configured_a_path_never_makes_it_a_failure():
    """An older version, another list of peers: it says nothing of that path."""
    never = {(1, "b")}
    assert judged(never, [report("b", 1, "z", Seen.WELL, at=SEC)]).paths == {}
    assert judged(never, expect("b", others_heard=False)).paths == {}
    found = judged(never, expect("b"))
    assert list(found.paths.values()) == ["never heard, though b probes this path"]
    assert found.links == {}


def test_what_a_peer_says_of_an_address_that_another_host_names_too_is_no_evidence():
    """Attack S4: it would take us off the address of another host."""
    never = {(1, "b")}
    views, ends = unseen_views(Host(), never)
    ends = [replace(e, open=not e.heard_ever) for e in ends]
    unseen, reports = Unseen("h"), expect("b")
    unseen.judge(views, ends, reports, SEC)
    assert unseen.judge(views, ends, reports, SEC + LASTS_NS).paths == {}


@pytest.mark.parametrize("returned", [True, False])
def test_what_we_gave_up_and_took_up_again_is_asked_about(returned):
    """The prober has such a path as gone until it hears it: that is no wish of the peer's."""
    views, ends = unseen_views(Host(), {(1, p) for p in "abc"})
    views = [v._replace(gone=not v.heard) for v in views]
    ends = [replace(e, returned=returned and not e.heard_ever) for e in ends]
    unseen, reports = Unseen("h"), expect("a", "b", heard=Seen.SILENT)
    unseen.judge(views, ends, reports, SEC)
    assert bool(unseen.judge(views, ends, reports, SEC + LASTS_NS).links) is returned


def test_the_neighbours_are_asked_about_paths_taken_up_again():
    host, where = Host(), Localization("h")
    kept = [p.spec for p in host.engine.paths]
    host.engine.configure(config(), [spec for spec in kept if spec.link != 1])
    host.run(SEC)
    host.engine.configure(config(), kept)
    host.gone = {(1, peer) for peer in "abc"}
    host.run(SEC)
    assert where.wants_reports(host.engine, host.now + 10 * SEC)


def test_a_peer_that_is_not_heard_elsewhere_is_no_witness():
    never = {(link, p) for link in range(4) for p in "ab"}
    assert judged(never, expect("a", "b")).links == {}


def test_what_peers_expect_goes_down_and_comes_up_when_it_is_heard():
    host = Host()
    host.engine.paths[4].heard_ever = False
    path = host.engine.paths[4]
    path.health.state = S.UNKNOWN
    host.silence((1, "b"))
    host.fresh_prober = True
    host.run(SEC)
    assert path.health.state is S.UNKNOWN
    path.unseen = "never heard, though b probes this path"
    host.run(SEC)
    assert path.health.state is S.DOWN
    assert [(p.netdev, p.remote) for p in host.engine.plan().paths] == [("rail1", "10.1.0.98")]
    path.unseen = ""
    host.restore()
    host.run(20 * SEC)
    assert path.health.state is S.UP
    host.engine.links[3].unseen = "never heard anything, though a, b probe it"
    host.run(SEC)
    assert host.states()[3] is S.DOWN
    host.run(SEC, prober=False)
    host.engine.links[3].unseen = ""
    host.run(20 * SEC)
    assert host.states()[3] is S.UP


def test_the_neighbours_are_asked_only_when_it_is_of_use():
    host, where = Host(), Localization("h")
    where.look(host.views(), host.engine, host.now)
    assert not where.wants_reports(host.engine, host.now)
    host.silence(1)
    host.run(SEC)
    where.look(host.views(), host.engine, host.now)
    assert where.wants_reports(host.engine, host.now)
    quiet = Host()
    quiet.engine.paths[0].heard_ever = False
    where = Localization("h")
    assert where.wants_reports(quiet.engine, quiet.now + 10 * SEC)
    where.hear([], quiet.now + 10 * SEC)
    assert not where.wants_reports(quiet.engine, quiet.now + 11 * SEC)


# -- documents ---------------------------------------------------------------------------------


def document(host, name="h", reports=(), topology=None):
    views = host.views()
    made = collect(name, views, host.engine, reports, topology or Topology(), well_since=0)
    return json.loads(json.dumps(made))


def test_documents_of_several_hosts_are_the_view_of_all():
    host = Host()
    host.silence(2)
    host.run(SEC)
    (alone,) = answer([document(host)])
    assert alone.kind is Kind.UNKNOWN
    reports = others(lambda _, rail: rail == 2)
    (blame,) = answer([document(host, reports=reports)])
    assert (blame.kind, blame.element) == (Kind.LEAF, "rail2")
    other = Host(peers="abh")  # host c, which hears the others well
    views = other.views()
    theirs = collect("c", views, other.engine, [], Topology(), well_since=0)
    theirs["flows"] = [f for f in theirs["flows"] if ["h", 2] not in (f[0:2], f[2:4])]
    (blame,) = answer([document(host), theirs])
    assert (blame.kind, blame.element) == (Kind.LINK, "h/2")
    told = blame_document(blame)
    assert json.loads(json.dumps(told)) == told
    assert answer([]) == []


def test_a_map_joins_rails_to_one_leaf():
    host = Host()
    host.silence(1, 2)
    host.run(SEC)
    both = Topology({(who, rail): "L" for who in "habc" for rail in (1, 2)})
    assert document(host, topology=both)["leaves"]
    reports = others(lambda _, rail: rail in (1, 2))
    (blame,) = answer([document(host, reports=reports, topology=both)])
    assert (blame.kind, blame.element) == (Kind.LEAF, "L")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda x: st.lists(x, max_size=6) | st.dictionaries(st.text(max_size=4), x, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(["flows", "dark", "lit", "leaves", "host"])


@given(st.lists(st.dictionaries(KEYS, JSON).map(lambda d: {"version": 1} | d) | JSON, max_size=2))
def test_any_document_is_taken_or_refused(documents):
    with contextlib.suppress(ObservationError):
        assert isinstance(answer(documents), list)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "of version 1"),
        ({"flows": [["a", 0, "b", 0]]}, "lists of 5"),
        ({"flows": [["a", 99, "b", 0, 1.0]]}, "rail"),
        ({"flows": [["a", 0, "b", 0, float("nan")]]}, "finite"),
        ({"dark": 3}, "dark: a list"),
        ({"leaves": [["a", 0, ""]]}, "name"),
    ],
)
def test_what_is_refused_says_why(change, why):
    host = Host()
    with pytest.raises(ObservationError, match=why):
        answer([document(host) | change])


def test_the_command_tells_nothing_wrong_from_nothing_seen(tmp_path):
    def said(*documents):
        files = []
        for number, each in enumerate(documents):
            files.append(str(tmp_path / f"{number}.json"))
            (tmp_path / f"{number}.json").write_text(json.dumps(each))
        done = CliRunner().invoke(app, ["locate", *files])
        assert done.exit_code == 0, done.output
        return done.stdout

    host = Host()
    well, blind = document(host), document(host) | {"flows": []}
    assert "nothing is silent" in said(well)
    assert "nothing is silent" in said(blind, well)
    assert "nothing is seen: no prober" in said(blind)
    host.silence(2)
    host.run(SEC)
    assert said(document(host)).startswith("unknown (")
    (tmp_path / "x").write_text("{")
    for source, why in ((tmp_path / "x", "not JSON"), (tmp_path, "Is a directory"),
                        (tmp_path / "none", "No such file or directory")):  # fmt: skip
        refused = CliRunner().invoke(app, ["locate", str(source)])
        assert refused.exit_code == 1
        assert refused.stderr.replace("\n", "").startswith(f"fabricctl: {source}: {why}")
