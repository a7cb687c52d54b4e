"""What probes may take, and what lets go of it: shares, kill switches, addresses that return."""

import pytest
from engine_host import MS, PEERS, SEC, Host, config, flap, specs

from fabricd.operate.effective import EffectiveOverrides
from telemetry.events import LinkState as S

pytestmark = pytest.mark.virtual_time

PROBES_OFF = EffectiveOverrides(off=frozenset({"probe-link", "probe-path", "probe-doubt"}))


def flaps_of_all_kept(host):
    kept = [x for x in host.engine.links if x.health.state in (S.SUSPECT, S.UP)]
    for link in kept:
        link.pending_downs = 1


def test_a_flap_of_kept_links_does_not_let_probes_take_them_too():
    host = Host(rails=8)
    host.silence(*range(7))
    host.run(SEC)
    assert host.weights().count(0) == 4
    flaps_of_all_kept(host)
    host.run(10 * MS)
    assert host.weights().count(0) == 8 - host.weights().count(1000) > 4, "the flap itself counts"
    host.run(15 * SEC)
    assert host.weights().count(0) == 4
    assert len(host.outcome.refused) == 3


def test_links_that_probes_keep_out_after_a_flap_are_of_their_share():
    host = Host(rails=8)
    for link in range(4):
        flap(host, link)
    host.silence(*range(7))
    host.run(5 * SEC)
    assert host.weights() == [0] * 4 + [1000] * 4
    host.restore()
    host.run(20 * SEC)
    assert host.weights() == [1000] * 8


def test_probe_evidence_takes_no_more_than_half_of_the_rails_from_one_peer():
    host = Host(rails=8, peers="a")
    host.silence(*range(7))
    host.run(SEC)
    assert host.weights() == [1000] * 8, "one peer accuses no link"
    assert len(host.engine.plan().paths) == 4
    host.restore()
    host.run(3 * SEC)
    assert host.engine.plan().paths == ()


def test_links_that_probes_took_count_with_each_peer():
    host = Host(rails=8)
    host.silence(0, 1, 2, *((rail, "b") for rail in range(3, 7)))
    host.run(SEC)
    assert host.weights().count(0) == 3
    said = [p for p in host.engine.plan().paths if not p.netdev < "rail3"]
    assert len(said) == 1


def test_two_dead_ports_elsewhere_make_no_suspect_of_the_link_that_probes_them():
    """It was SUSPECT as long as they were dead, and an alert said so after ten minutes."""
    host = Host(rails=3, peers="abcd")
    host.silence((1, "a"), (1, "b"))
    host.run(30 * SEC, step=100 * MS)
    assert host.states() == [S.UP] * 3
    assert {(p.netdev, p.remote) for p in host.engine.plan().paths} == {
        ("rail1", "10.1.0.97"), ("rail1", "10.1.0.98")
    }  # fmt: skip
    assert not [c for c in host.changes if c.transition.to_state is S.SUSPECT and not c.peer]


def flap_with_late_probes(host, link):
    """300 ms without carrier, and then its probes are silent for 150 ms more."""
    host.engine.links[link].carrier, host.engine.links[link].pending_downs = False, 1
    host.silence(link)
    yield from (host.run(10 * MS) for _ in range(30))
    host.engine.links[link].carrier = True
    yield from (host.run(10 * MS) for _ in range(15))
    for path in host.engine.paths:
        if path.spec.link == link:
            host.silent.pop(path.index, None)
    yield from (host.run(10 * MS) for _ in range(30))


def changes_of_exceptions(host, steps):
    """How often the page's path entries change."""
    changes, before = 0, host.engine.plan().paths
    for _ in steps:
        if (now := host.engine.plan().paths) != before:
            changes, before = changes + 1, now
    return changes


def flap_often(host, link, times):
    for _ in range(times):
        yield from flap_with_late_probes(host, link)


@pytest.mark.parametrize("flaps", [1, 13])
def test_flaps_of_one_rail_change_the_exception_on_another_three_times_at_most(flaps):
    """It was twice for each flap: probes keep a link out for a moment once its carrier is back."""
    host = Host(rails=3)
    host.silence((1, "b"))
    host.run(2 * SEC)
    assert [(p.netdev, p.remote, p.weight) for p in host.engine.plan().paths] == [
        ("rail1", "10.1.0.98", 0)
    ]
    published = 1 + changes_of_exceptions(host, flap_often(host, 0, flaps))
    published += changes_of_exceptions(host, (host.run(SEC, step=SEC) for _ in range(100)))
    host.restore()
    published += changes_of_exceptions(host, (host.run(SEC, step=SEC) for _ in range(100)))
    assert published <= 3
    assert host.engine.plan().paths == (), "the path is well, and carries"


def test_an_exception_that_was_given_up_returns_after_the_window():
    host = Host(rails=3)
    host.silence((1, "b"))
    host.run(2 * SEC)
    for _ in flap_with_late_probes(host, 0):
        pass
    assert host.engine.plan().paths == ()
    host.run(300 * SEC, step=SEC)
    assert host.engine.plan().paths == (), "two of three changes are made"
    host.run(301 * SEC, step=SEC)
    assert [(p.netdev, p.weight) for p in host.engine.plan().paths] == [("rail1", 0)]


def test_a_path_whose_peer_says_that_it_has_no_carrier_is_no_probe_evidence():
    host = Host(rails=3)
    host.silence((1, "b"))
    host.engine.report_peers({}, {}, {path_of(host, 1, "b").index})
    host.run(2 * SEC)
    assert changes_of_exceptions(host, flap_often(host, 0, 13)) == 0
    assert [(p.netdev, p.weight) for p in host.engine.plan().paths] == [("rail1", 0)]


def path_of(host, link, peer):
    return next(p for p in host.engine.paths if (p.spec.link, p.spec.peer) == (link, peer))


@pytest.mark.parametrize("prober", [True, False])
def test_a_detector_that_is_off_releases_what_it_took(prober):
    host = Host()
    host.silence(1, (2, "b"))
    host.run(SEC)
    assert host.states()[1] is S.DOWN
    assert [(p.netdev, p.remote) for p in host.engine.plan().paths] == [("rail2", "10.2.0.98")]
    host.engine.overrides = PROBES_OFF
    host.run(SEC, prober=prober)
    assert host.weights()[1] == 0, "the hold-down is as ever"
    host.run(20 * SEC, prober=prober)
    assert host.states() == [S.UP] * 4
    assert host.engine.plan().paths == ()
    host.engine.overrides = EffectiveOverrides()
    host.run(SEC)
    assert host.states()[1] is S.DOWN


def test_other_evidence_holds_a_link_though_its_probes_are_not_heeded():
    host = Host()
    host.silence(1)
    host.run(SEC)
    host.engine.overrides = PROBES_OFF
    host.engine.links[1].carrier = False
    host.run(20 * SEC)
    assert host.states()[1] is S.DOWN
    host.engine.links[1].carrier = True
    host.run(3 * SEC)
    assert host.states()[1] is S.PROBATION


def test_a_restarted_prober_holds_nothing_that_is_switched_off():
    host = Host()
    host.silence(1, (2, "b"))
    host.run(SEC)
    host.fresh_prober, host.engine.overrides = True, PROBES_OFF
    host.run(20 * SEC)
    assert host.states() == [S.UP] * 4
    assert host.engine.plan().paths == ()


def without(link):
    return [spec for spec in specs() if spec.link != link]


def back_again(host, link, away):
    """The link's addresses go and come back; the prober has its paths as gone until it hears."""
    host.engine.configure(config(), without(link))
    host.silent = {i - (i > 3 * link) * 3: t for i, t in host.silent.items() if i // 3 != link}
    host.run(away)
    host.engine.configure(config(), specs())
    host.silent.clear()
    host.silence(link)
    host.gone = {(link, peer) for peer in PEERS}


@pytest.mark.parametrize("away", [100 * MS, 3 * SEC])
def test_an_address_that_comes_back_does_not_undo_a_black_hole(away):
    host = Host()
    host.silence(1)
    host.run(SEC)
    back_again(host, 1, away)
    host.run(60 * SEC)
    assert host.weights()[1] == 0
    host.restore()
    host.gone.clear()
    host.run(20 * SEC)
    assert host.states() == [S.UP] * 4


def test_an_address_that_comes_back_does_not_undo_an_exception():
    host = Host()
    host.silence((1, "b"))
    host.run(SEC)
    back_again(host, 1, SEC)
    host.silent = {4: host.now}
    host.gone = {(1, "b")}
    host.run(30 * SEC)
    assert [(p.netdev, p.remote) for p in host.engine.plan().paths] == [("rail1", "10.1.0.98")]


def test_a_link_whose_address_is_gone_for_good_returns_on_its_carrier():
    host = Host()
    host.silence(1)
    host.run(SEC)
    host.engine.configure(config(), without(1))
    host.silent.clear()
    host.run(9 * SEC)
    assert host.states()[1] is S.DOWN
    host.run(15 * SEC)
    assert host.states()[1] is S.UP
    host.engine.configure(config(), specs())
    host.gone = {(1, peer) for peer in PEERS}
    host.run(10 * SEC)
    assert host.states()[1] is S.UP, "peers have to say that they probe it"
    assert [p.returned for p in host.engine.paths if p.spec.link == 1] == [True] * 3


def test_a_link_that_lost_its_carrier_waits_for_no_address():
    host = Host()
    host.engine.links[1].carrier = False
    host.run(SEC)
    host.engine.configure(config(), without(1))
    host.engine.links[1].carrier = True
    host.run(3 * SEC)
    assert host.states()[1] is S.PROBATION
