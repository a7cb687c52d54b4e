"""Between the prober's table and the detectors; where a host says its faults are."""

from engine_host import MS, SEC, Host, I, config, flap, specs

from fabricd.detect.evidence import Places, flows, loss_counters, path_views
from fabricd.detect.locate import CLEAN, SILENT, Kind
from fabricd.engine import Engine
from fabricd.probes.records import PathRow
from telemetry.events import LinkState as S


def row(index, link, **fields):
    base = dict.fromkeys(PathRow._fields, 0) | {
        "index": index, "link": link, "address": "", "established": True, "clock": False,
        "interval_ns": I, "last_heard_ns": SEC, "rx_bitmap": 1, "tx_bitmap": 1,
    }  # fmt: skip
    return PathRow(**base | fields)


def test_rows_become_views_and_counters():
    engine = Host().engine
    rows = [
        row(p.index, p.spec.link, rx_missed=2, received=9, sent=8, rx_lost=1, tx_lost=3,
            rtt_last_ns=900, rtt_smoothed_ns=500, rtt_min_ns=200, peer_interval_ns=7,
            said_ns=50, due_ns=90, awake_us=3, peer_incarnation=6, late_ns=11)
        for p in engine.paths
    ]  # fmt: skip
    view = path_views(rows, engine.paths)[4]
    assert (view.link, view.peer, view.rx_missed) == (1, "b", 2)
    assert (view.interval_ns, view.late_ns) == (7, 11)
    assert (view.due, view.awake_ns, view.life) == (SEC + 40, 3000, 6)
    assert view.heard
    assert not path_views([row(0, 0, established=False)], engine.paths)[0].heard
    assert not path_views([row(0, 0, last_heard_ns=0)], engine.paths)[0].heard
    counters = loss_counters(rows, engine)[4]
    assert (counters.rail, counters.peer, counters.peer_rail) == (1, "b", 1)
    assert (counters.sent, counters.received, counters.rx_lost, counters.tx_lost) == (8, 9, 1, 3)
    assert counters.queue_ns == 300, "a single late answer is no standing queue"
    assert not counters.outage


def test_silence_hides_the_other_direction_and_the_unheard_say_nothing():
    host = Host()
    host.silence((1, "b"))
    host.run(SEC)
    seen = {(f.source, f.target): f.ratio for f in flows("h", host.views(), host.engine)}
    assert seen[("b", 1), ("h", 1)] == SILENT
    assert (("h", 1), ("b", 1)) not in seen
    assert seen[("h", 1), ("a", 1)] == CLEAN
    host.fresh_prober = True
    assert (("b", 1), ("h", 1)) not in {
        (f.source, f.target) for f in flows("h", host.views(), host.engine)
    }


def look(host, places, seconds):
    """Runs on; what was told meanwhile."""
    told = []
    for _ in range(round(seconds / 0.5)):
        host.run(SEC // 2)
        told += places.look(host.views(), host.engine, host.now)
    return told


def test_each_place_is_told_once_when_it_is_steady():
    host, places = Host(), Places("h")
    assert look(host, places, 2) == []
    host.silence(2)
    (blame,) = look(host, places, 10)
    assert {(k, name) for k, name, _ in blame.candidates[:2]} == {
        (Kind.LINK, "h/2"), (Kind.LEAF, "rail2"),
    }  # fmt: skip
    assert places.now == [blame]
    host.restore()
    assert look(host, places, 3) == []
    assert places.now == []
    host.silence((1, "b"))
    assert [b.kind for b in look(host, places, 3)] == [Kind.LINK]


def test_a_flap_is_too_short_to_be_placed_and_a_dead_peer_is_a_host():
    host, places = Host(), Places("h")
    flap(host, 1)
    assert look(host, places, 3) == []
    host.silence(*((r, "c") for r in range(4)))
    (blame,) = look(host, places, 3)
    assert (blame.kind, blame.element) == (Kind.HOST, "c")


def test_a_link_never_seen_up_is_no_fault():
    host = Host()
    host.engine.links[3].health.__init__(
        host.engine.links[3].health.damping.rules, host.engine.links[3].health.hold
    )
    host.engine.links[3].carrier = False
    host.silence(3)
    host.fresh_prober = True
    assert look(host, Places("h"), 3) == []
    assert host.states()[3] is S.UNKNOWN


def test_reboot_takes_over_damping_of_links_and_refuses_garbage():
    host = Host()
    flap(host, 1)
    host.run(100 * MS)
    document = host.engine.save(host.now)
    after = Host().engine
    fresh = Engine(config(), specs())
    assert fresh.restore_history(document, SEC, 60 * SEC) == []
    assert fresh.links[1].health.state is S.HOLD
    assert fresh.links[1].health.damping.hourly(SEC) == 1
    assert fresh.links[0].health.state is S.UNKNOWN
    assert after.restore_history({}, SEC, 0) == ["links"]
    assert after.restore_history({"links": {"rail0": 7}}, SEC, 0) == ["links rail0"]
