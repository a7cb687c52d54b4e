"""What a host's probes say of others, and when that is no evidence."""

from engine_host import MS, PEERS, SEC, Host
from hypothesis import given
from hypothesis import strategies as st

from fabricd.escalate.evidence import ABSTAIN_NS, ProberGaps, observations, rails_by_host
from telemetry.messages.documents import HostObservations, parse

ALL = [(rail, "a") for rail in range(4)]


def told(host, gaps=None, fences=()):
    data = observations(host.views(), host.engine, gaps or ProberGaps(), fences, host.now)
    return parse(HostObservations, data)


def test_all_heard():
    said = told(Host())
    assert (said.silent, said.heard, said.abstains) == ([], list(PEERS), False)


def test_a_silent_host_is_named_with_its_rails_when_the_engine_knows():
    host = Host()
    host.silence(*ALL)
    while "a" not in host.engine.silent_hosts:
        assert "a" in told(host).heard
        host.run(10 * MS)
    said = told(host)
    assert [(x.host, x.rails, x.rails_probed) for x in said.silent] == [("a", 4, 4)]
    assert said.heard == ["b", "c"]
    host.restore()
    host.run(50 * MS)
    assert told(host).heard == list(PEERS)


def test_a_rail_of_the_peer_is_told_and_the_peer_is_heard():
    host = Host()
    host.silence((1, "a"))
    host.run(200 * MS)
    said = told(host)
    assert [(x.host, x.rails, x.rails_probed) for x in said.silent] == [("a", 1, 4)]
    assert "a" in said.heard


def test_a_rail_whose_own_link_fails_says_nothing_of_others():
    host = Host()
    host.silence(0)
    host.silence(*ALL)
    host.run(300 * MS)
    assert host.engine.blamed(0)
    said = told(host)
    assert [(x.host, x.rails, x.rails_probed) for x in said.silent] == [("a", 3, 3)]
    assert said.heard == ["b", "c"]
    host.engine.links[1].carrier = False
    assert [(x.host, x.rails, x.rails_probed) for x in told(host).silent] == [("a", 2, 2)]


def test_without_a_link_that_hears_or_a_prober_a_host_abstains():
    host = Host()
    for link in host.engine.links:
        link.carrier = False
    said = told(host)
    assert (said.abstains, said.silent, said.heard) == (True, [], [])
    assert observations(None, host.engine, ProberGaps(), (), host.now)["abstains"]


def test_a_peer_that_sent_a_bye_is_neither_silent_nor_heard():
    host = Host()
    host.gone = set(ALL)
    host.run(200 * MS)
    said = told(host)
    assert (said.silent, said.heard) == ([], ["b", "c"])


def test_a_host_abstains_for_a_while_after_a_gap_of_its_own_prober():
    gaps, host = ProberGaps(), Host()
    gaps.update(7, 5 * SEC, host.now)
    assert not told(host, gaps).abstains, "gaps before our start are no matter"
    gaps.update(7, 5 * SEC + 300 * MS, host.now)
    gaps.update(7, 5 * SEC + 350 * MS, host.now + 1)
    said = told(host, gaps)
    assert (said.abstains, said.gap_ms) == (True, 300.0)
    host.now += ABSTAIN_NS + 2
    said = told(host, gaps)
    assert (said.abstains, said.gap_ms) == (False, 0.0)


def test_a_host_abstains_while_its_prober_is_away_and_after_another_began():
    gaps = ProberGaps()
    gaps.update(0, 0, 0)
    assert gaps.abstains(0), "no prober"
    gaps.update(7, 0, ABSTAIN_NS)
    assert not gaps.abstains(ABSTAIN_NS)
    gaps.update(8, 0, 2 * ABSTAIN_NS)
    assert gaps.abstains(2 * ABSTAIN_NS), "another one was away until now"
    assert not gaps.abstains(3 * ABSTAIN_NS)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**12), st.integers(1, 10**10))))
def test_any_figures_of_a_prober(figures):
    gaps, now = ProberGaps(), 0
    for life, stall_ns, wait in figures:
        now += wait
        gaps.update(life, stall_ns, now)
        assert gaps.gap_ms(now) >= 0
        assert not gaps.abstains(now + ABSTAIN_NS)


@given(st.sets(st.tuples(st.integers(0, 3), st.sampled_from(PEERS))), st.integers(0, 30))
def test_never_silent_and_heard_on_all_rails_at_once(silenced, steps):
    host = Host()
    host.silence(*silenced)
    host.run(max(1, steps) * 10 * MS)
    silent, heard = rails_by_host(host.views(), host.engine)
    for peer, (rails, probed) in silent.items():
        assert 0 < rails <= probed <= 4
        assert (peer in heard) == (rails < probed)
