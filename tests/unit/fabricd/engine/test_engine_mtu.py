"""An MTU black hole as evidence: a link or path goes, may be kept, and comes back."""

from dataclasses import replace

from engine_host import MS, SEC, Host, config, specs

from fabricd.operate.effective import EffectiveOverrides
from telemetry.events import LinkState as S

HOLE = "MTU black hole: 9000-byte packets do not arrive at a, b, small ones do"


def state(host, link=1):
    return host.engine.links[link].health.state


def test_a_link_that_drops_large_packets_goes_at_once_and_comes_back_when_they_pass():
    host = Host()
    host.engine.links[1].mtu = HOLE
    host.run(100 * MS)
    assert state(host) is S.DOWN
    assert host.engine.links[1].health.reason == HOLE
    assert [rail.weight for rail in host.engine.plan().rails] == [1000, 0, 1000, 1000]
    host.run(30 * SEC, step=200 * MS)
    assert state(host) is S.DOWN, "small probes pass all the time"
    host.engine.links[1].mtu = ""
    host.run(30 * SEC, step=200 * MS)
    assert state(host) is S.UP


def test_a_path_that_drops_large_packets_is_an_exception():
    host = Host()
    path = next(p for p in host.engine.paths if p.spec.link == 1 and p.spec.peer == "b")
    path.mtu = HOLE
    host.run(100 * MS)
    assert state(host) is S.UP
    assert path.health.state is S.DOWN
    assert [(p.netdev, p.remote) for p in host.engine.plan().paths] == [
        ("rail1", path.spec.address)
    ]
    path.mtu = ""
    host.run(30 * SEC, step=200 * MS)
    assert path.health.state is S.UP


def test_it_takes_no_more_than_the_share_of_probes():
    host = Host()
    for link in host.engine.links:
        link.mtu = HOLE
    host.run(100 * MS)
    out = [link.netdev for link in host.engine.links if link.out]
    assert len(out) == 2
    assert set(host.outcome.refused) == {x.netdev for x in host.engine.links} - set(out)


def test_with_the_detector_off_or_in_a_maintenance_window_it_takes_nothing():
    for overrides in (
        EffectiveOverrides(off=frozenset({"mtu"})),
        EffectiveOverrides(planned=frozenset({"rail1"})),
    ):
        host = Host()
        host.engine.overrides = replace(overrides)
        host.engine.links[1].mtu = HOLE
        host.run(SEC)
        assert state(host) is S.UP
    host = Host()
    host.engine.overrides = EffectiveOverrides(off=frozenset({"probe-link", "probe-path"}))
    host.engine.links[1].mtu = HOLE
    host.run(100 * MS)
    assert state(host) is S.DOWN, "it is a detector of its own"


def test_another_configuration_returns_nothing_that_drops_large_packets():
    host = Host()
    host.engine.links[1].mtu = host.engine.paths[0].mtu = HOLE
    host.run(100 * MS)
    host.engine.configure(config(), specs(peers="abd"))
    assert (host.engine.links[1].mtu, host.engine.paths[0].mtu) == (HOLE, HOLE)
    host.run(30 * SEC, step=200 * MS)
    assert state(host) is S.DOWN
    assert host.engine.paths[0].health.state is S.DOWN


def test_a_path_stays_down_for_large_packets_though_small_probes_take_no_path_down():
    host = Host()
    host.engine.overrides = EffectiveOverrides(off=frozenset({"probe-path"}))
    path = host.engine.paths[0]
    path.mtu = HOLE
    host.run(30 * SEC, step=200 * MS)
    assert path.health.state is S.DOWN
    assert [c.transition.to_state for c in host.changes if c.peer].count(S.DOWN) == 1
    path.mtu = ""
    host.run(30 * SEC, step=200 * MS)
    assert path.health.state is S.UP
