"""Byes: silence by intent is no fault, in engine and timeline."""

from engine_host import PEERS, SEC, Host, config, specs
from test_detect_evidence import row

from fabricd.detect.bye import ByeTracker
from fabricd.detect.evidence import flows, path_views
from fabricd.detect.localization import Localization
from fabricd.detect.verdict import healthy
from fabricd.state.model import BYE
from fabricd.steer.policy import FULL
from telemetry.events import EventKind
from telemetry.events import LinkState as S


def path_states(host):
    return {(p.spec.link, p.spec.peer): p.health.state for p in host.engine.paths}


def test_a_row_with_the_flag_is_not_heard_and_not_silent():
    engine = Host().engine
    view = path_views([row(0, 0, gone=True, rx_missed=9)], engine.paths)[0]
    assert view.gone
    assert not view.heard
    assert flows("h", [view], engine) == []


def test_peers_that_leave_a_link_by_intent_take_nothing():
    host = Host()
    host.gone = {(1, peer) for peer in PEERS}
    host.changes.clear()
    host.run(5 * SEC)
    assert host.states() == [S.UP] * 4
    assert set(path_states(host).values()) == {S.UP}
    assert host.changes == []
    assert host.outcome.silent_hosts == frozenset()


def test_a_peer_that_leaves_everywhere_is_no_silent_host():
    host = Host()
    host.gone = {(link, "b") for link in range(4)}
    host.run(2 * SEC)
    assert host.outcome.silent_hosts == frozenset()


def test_a_path_that_was_out_is_no_exception_any_more_and_begins_anew():
    host = Host()
    host.silence((1, "b"))
    host.run(SEC)
    assert [p.netdev for p in host.engine.plan().paths] == ["rail1"]
    host.gone = {(1, "b")}
    host.run(SEC)
    (path,) = [p for p in host.engine.paths if (p.spec.link, p.spec.peer) == (1, "b")]
    assert path.health.state is S.ADMIN
    assert path.health.reason == BYE
    assert host.engine.plan().paths == ()
    host.gone = set()
    host.restore()
    host.run(SEC)
    assert path.health.state is S.UP


def test_a_link_comes_back_though_peers_left_it_meanwhile():
    host = Host()
    host.silence(1)
    host.run(SEC)
    assert host.states()[1] is S.DOWN
    host.gone = {(1, "a"), (1, "b")}
    host.silent = {i: t for i, t in host.silent.items() if host.engine.paths[i].spec.peer != "c"}
    host.run(5 * SEC)
    assert host.states()[1] is S.PROBATION
    views = [v for v in host.views() if v.link == 1]
    assert healthy(views, [v.index for v in views], frozenset(PEERS))


def test_silence_without_a_bye_is_still_a_fault():
    host = Host()
    host.gone = {(1, "a")}
    host.silence((1, "b"), (1, "c"))
    host.run(SEC)
    assert host.states()[1] is S.DOWN
    assert host.engine.plan().rails[1].weight == 0
    assert host.engine.plan().rails[0].weight == FULL


def test_the_timeline_has_one_row_a_peer_once_it_is_steady():
    host, where = Host(), Localization("h")
    assert where.look(host.views(), host.engine, host.now) == []
    host.gone = {(0, "b")}
    assert where.look(host.views(), host.engine, host.now) == [], "it may not have said it all"
    host.gone = {(link, "b") for link in range(4)}
    assert where.look(host.views(), host.engine, host.now) == []
    (said,) = where.look(host.views(), host.engine, host.now)
    assert (said.kind, said.peer) == (EventKind.PROBER, "b")
    assert said.reason == "b: bye on rail0, rail1, rail2, rail3: silence there is by intent"
    assert where.look(host.views(), host.engine, host.now) == []
    host.gone = set()
    where.look(host.views(), host.engine, host.now)
    (said,) = where.look(host.views(), host.engine, host.now)
    assert said.reason == "b: probes again"


def test_other_paths_are_told_anew():
    host, told = Host(), ByeTracker()
    host.gone = {(0, "b")}
    views = host.views()
    assert [told.update(views), told.update(views)] == [[], [("b", frozenset({0}))]]
    told.reset()
    host.engine.configure(config(), specs(peers="ac"))
    assert told.update(host.views()) == []
