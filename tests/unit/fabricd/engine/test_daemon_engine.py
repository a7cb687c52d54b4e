"""The engine: a host's decisions in virtual time."""

import itertools

import pytest
from engine_host import MS, SEC, Host, I, config, flap, specs
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.rules import Class, CounterJudge
from fabricd.engine import PORT_INACTIVE, PROBER_GRACE_NS, Engine
from fabricd.links.health import Facts
from fabricd.operate.effective import EffectiveOverrides
from telemetry.events import LinkState as S

pytestmark = pytest.mark.virtual_time


def test_everything_comes_up():
    host = Host()
    assert host.states() == [S.UP] * 4
    assert all(p.health.state is S.UP for p in host.engine.paths)
    assert host.weights() == [1000] * 4


def test_carrier_loss_is_enough_alone():
    host = Host()
    host.engine.links[2].carrier = False
    host.engine.links[2].pending_downs = 1
    host.run(10 * MS)
    assert host.weights() == [1000, 1000, 0, 1000]
    assert [c.transition.reason for c in host.changes if c.netdev == "rail2"][-1] == "carrier lost"


def test_black_hole_and_back():
    host = Host()
    host.silence(1)
    host.run(150 * MS)
    assert host.states()[1] is S.DOWN
    assert host.engine.links[1].health.out_by_probes
    assert host.engine.plan().paths == (), "not path by path"
    host.restore()
    host.run(3 * SEC)
    assert host.states()[1] is S.PROBATION
    host.run(11 * SEC)
    assert host.states() == [S.UP] * 4


def moves(host, link):
    return [
        (c.transition.from_state, c.transition.to_state)
        for c in host.changes
        if c.netdev == f"rail{link}" and not c.peer
    ]


def test_probes_that_still_miss_after_the_carrier_returned_publish_nothing():
    host = Host(extra="[hold]\nhold_down_s = 0.5\n")
    host.changes.clear()
    host.silence(1)
    flap(host, 1)
    host.run(300 * MS)  # Every path is silent: a verdict, were the link in use.
    assert host.outcome.changes == []
    assert "hold goes on" in host.engine.links[1].health.reason
    host.restore()
    host.run(600 * MS)
    assert moves(host, 1) == [(S.UP, S.DOWN), (S.DOWN, S.HOLD), (S.HOLD, S.PROBATION)]
    assert host.engine.links[1].health.damping.hourly(host.now) == 1


def test_a_loaded_host_that_misses_now_and_then_does_not_prolong_a_hold():
    """Two of three paths miss two in a row, without a verdict, each 200 ms; the ring fails too."""
    host = Host()
    flap(host, 1)
    began = host.now
    for turn in itertools.count():
        host.silence((1, "a"), (1, "b"))
        host.run(80 * MS, prober=turn % 4 != 0)
        host.restore()
        host.run(120 * MS)
        if host.states()[1] is S.PROBATION or turn > 300:
            break
    assert host.now - began <= 2.2 * SEC, "the hold-down, and one turn"
    assert host.engine.links[1].health.damping.hourly(host.now) == 1


def test_each_verdict_in_hold_costs_one_hold_down_and_no_damping():
    host = Host()
    flap(host, 1)
    for _ in range(5):
        host.silence(1)
        host.run(200 * MS)
        host.restore()
        host.run(SEC)
    assert host.states()[1] is S.HOLD
    host.run(SEC + 20 * MS)
    assert host.states()[1] is S.PROBATION
    assert moves(host, 1)[1:] == [(S.UP, S.DOWN), (S.DOWN, S.HOLD), (S.HOLD, S.PROBATION)]


def test_black_hole_that_begins_in_hold_is_published_when_it_stays():
    host = Host()
    flap(host, 1)
    host.run(SEC)
    host.silence(1)
    host.run(9 * SEC)
    assert host.states()[1] is S.HOLD
    assert host.weights()[1] == 0
    host.run(3 * SEC)
    assert host.states()[1] is S.DOWN
    assert "nothing heard" in host.engine.links[1].health.reason
    host.restore()
    host.run(3 * SEC)
    assert host.states()[1] is S.PROBATION


def test_short_doubts_do_not_make_a_link_suspect():
    host = Host(extra="[steer]\nmax_probe_share = 0.0\n")
    host.changes.clear()
    for _ in range(50):
        host.silence(1)
        host.run(120 * MS)
        host.restore()
        host.run(180 * MS)
    assert host.changes == []
    host.silence(1)
    host.run(400 * MS)
    assert host.states()[1] is S.SUSPECT
    for _ in range(50):
        host.restore()
        host.run(180 * MS)
        host.silence(1)
        host.run(120 * MS)
    host.restore()
    host.run(1900 * MS)
    assert moves(host, 1) == [(S.UP, S.SUSPECT)]
    host.run(200 * MS)
    assert moves(host, 1)[1:] == [(S.SUSPECT, S.UP)]


def test_losses_of_a_link_at_fault_are_explained_also_when_it_is_kept():
    host = Host(extra="[steer]\nmax_probe_share = 0.0\n")
    host.silence(1)
    host.run(SEC)
    assert host.states()[1] is S.SUSPECT
    assert [host.engine.in_outage(p.index) for p in host.engine.paths] == [False] * 3 + [
        True
    ] * 3 + [False] * 6
    host.restore()
    host.run(100 * MS)
    assert host.states()[1] is S.SUSPECT
    assert not any(host.engine.in_outage(p.index) for p in host.engine.paths)


def findings(increments, cls):
    judge = CounterJudge()
    for second in range(30):
        judge.feed(increments, 1.0, second * SEC)
    found = judge.findings(29 * SEC)
    assert {f.rule.cls for f in found} == {cls}
    return found


def test_hard_counters_take_a_link_alone_and_soft_ones_half_of_it():
    host = Host(extra="[steer]\nmax_probe_share = 0.0\n")
    host.engine.links[0].counters = findings({"local_link_integrity_errors": 1}, Class.HARD)
    host.engine.links[1].counters = findings({"crc_errors": 100}, Class.SOFT)
    host.engine.links[2].counters = findings({"cnp_sent": 10**6}, Class.CONGESTION)
    host.run(10 * MS)
    assert host.weights() == [0, 500, 1000, 1000], "no limit of probes applies, congestion is none"
    assert host.engine.links[0].health.reason == "local_link_integrity_errors"
    assert not host.engine.links[0].health.out_by_probes
    assert "crc_errors 100/s" in host.engine.links[1].health.reason
    host.run(SEC)
    assert host.states()[0] is S.DOWN, "while the rule's window goes on"
    host.engine.links[0].counters = host.engine.links[1].counters = ()
    host.run(3 * SEC)
    assert host.weights() == [1000] * 4


RETRIES = {"timeouts": 10**4, "out_of_sequence": 10**5}


def test_what_is_lost_everywhere_takes_no_more_than_half_of_the_rails():
    """Retries of the transport are where probes are lost, on every rail: no evidence of a NIC."""
    host = Host()
    for link in host.engine.links:
        link.worse, link.counters = "rx loss", findings(RETRIES, Class.SOFT)
    host.run(SEC)
    assert host.weights().count(500) == 2
    assert len(host.outcome.refused) == 2
    taken = next(x for x in host.engine.links if x.health.state is S.DEGRADED)
    assert "timeouts" in taken.health.reason, "it is told with the loss"


def test_a_detector_that_is_off_does_not_let_others_speak():
    host = Host()
    host.engine.overrides = EffectiveOverrides(off=frozenset({"loss"}))
    host.engine.links[0].worse, host.engine.links[0].counters = (
        "rx loss", findings(RETRIES, Class.SOFT),
    )  # fmt: skip
    host.run(SEC)
    assert host.weights() == [1000] * 4


def test_a_verbs_port_that_is_not_active_says_so_and_is_damped():
    host = Host()
    link = host.engine.links[1]
    for _ in range(3):
        link.port_active = False
        host.run(SEC)
        assert (link.health.state, host.weights()[1]) in ((S.DOWN, 0), (S.HOLD, 0))
        link.port_active = True
        host.run(8 * SEC)
    said = [c.transition.reason for c in host.changes if c.transition.to_state is S.DOWN]
    assert said[0] == PORT_INACTIVE
    assert not any("carrier" in reason for reason in said)
    assert link.health.damping.penalty(host.now) > 0, "as any other down"


def test_a_verbs_port_that_never_was_active_is_no_failure():
    engine = Engine(config(2), specs(2))
    for link in engine.links:
        link.carrier = True
    engine.links[0].port_active = False
    engine.evaluate(None, SEC)
    assert [link.health.state for link in engine.links] == [S.UNKNOWN, S.UP]


def test_a_path_that_loses_much_is_on_the_page_with_half():
    host = Host()
    path = host.engine.paths[1]
    path.worse = "rx loss"
    host.run(SEC)
    (entry,) = host.engine.plan().paths
    assert (entry.netdev, entry.remote, entry.weight) == (path.netdev, path.spec.address, 500)
    path.worse = ""
    host.run(SEC)
    assert host.engine.plan().paths == ()


def test_probes_alone_take_no_more_than_half_of_the_rails():
    host = Host()
    host.silence(0, 1, 2)
    host.run(SEC)
    assert host.weights().count(0) == 2
    assert len(host.outcome.refused) == 1
    assert host.states().count(S.SUSPECT) == 1
    assert not host.engine.plan().paths, "nor its paths one by one"


def test_carrier_may_take_more_than_half():
    host = Host()
    for link in host.engine.links[:3]:
        link.carrier = False
    host.run(10 * MS)
    assert host.weights() == [0, 0, 0, 1000]


def test_probes_never_take_the_last_rail_that_carries():
    host = Host()
    for link in host.engine.links[:3]:
        link.carrier = False
    host.run(10 * MS)
    host.silence(3)
    host.run(SEC)
    assert host.weights()[3] == 1000
    assert host.states()[3] is not S.DOWN


@pytest.mark.parametrize(("share", "taken"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 3)])
def test_share_is_configurable(share, taken):
    host = Host(extra=f"[steer]\nmax_probe_share = {share}\n")
    host.silence(0, 1, 2)
    host.run(SEC)
    assert host.states().count(S.DOWN) == taken


def test_one_silent_peer_is_an_exception_on_the_page():
    host = Host()
    host.silence((1, "b"))
    host.run(SEC)
    assert host.weights() == [1000] * 4
    assert [(p.netdev, p.remote) for p in host.engine.plan().paths] == [("rail1", "10.1.0.98")]
    host.restore()
    host.run(3 * SEC)
    assert host.engine.plan().paths == ()


def test_silent_host_changes_nothing_but_is_said():
    host = Host()
    host.silence(*((r, "c") for r in range(4)))
    host.run(SEC)
    assert host.outcome.silent_hosts == {"c"}
    assert host.weights() == [1000] * 4
    assert host.engine.plan().paths == ()


def test_restarted_prober_does_not_bring_a_black_hole_back():
    host = Host()
    host.silence(1)
    host.run(SEC)
    host.run(SEC, prober=False)
    host.fresh_prober = True
    host.run(30 * SEC)
    assert host.states()[1] is S.DOWN
    host.restore()
    host.run(3 * SEC)
    assert host.states()[1] is S.PROBATION


def test_without_a_prober_a_link_returns_after_a_grace():
    host = Host()
    host.silence(1)
    host.run(SEC)
    host.run(PROBER_GRACE_NS - SEC, prober=False)
    assert host.states()[1] is S.DOWN
    host.run(4 * SEC, prober=False)
    assert host.weights()[1] == 1000


def test_without_a_prober_carrier_alone_rules():
    host = Host()
    host.engine.links[0].carrier = False
    host.run(SEC, prober=False)
    assert host.states()[0] is S.DOWN
    host.engine.links[0].carrier = True
    host.run(3 * SEC, prober=False)
    assert host.states()[0] is S.PROBATION


def test_state_and_penalty_outlive_a_restart():
    host = Host()
    host.silence(1)
    host.silence((2, "a"))
    host.run(SEC)
    document = host.engine.save(host.now)
    other = Engine(config(), specs())
    assert other.restore(document, host.now + SEC, SEC) == []
    assert [x.health.state for x in other.links] == host.states()
    assert [x.health.state for x in other.paths] == [x.health.state for x in host.engine.paths]
    assert other.links[1].health.damping.penalty(host.now + SEC) > 900
    host.engine, host.fresh_prober = other, True
    for link in other.links:
        link.carrier = True
    host.run(10 * SEC)
    assert host.weights()[1] == 0, "what was heard before the restart is still expected"


def test_what_the_page_says_to_be_out_is_out():
    engine = Engine(config(), specs())
    engine.adopt("rail1", "", S.DOWN, SEC)
    engine.adopt("rail2", "10.2.0.97", S.HOLD, SEC)
    engine.adopt("rail0", "", S.UP, SEC)
    assert [x.health.state for x in engine.links] == [S.UNKNOWN, S.DOWN, S.UNKNOWN, S.UNKNOWN]
    assert [p.index for p in engine.paths if p.health.state is S.HOLD] == [6]


@pytest.mark.parametrize("document", [{}, {"links": 3, "paths": []}, {"links": {"rail0": 7}}])
def test_garbage_is_not_restored(document):
    engine = Engine(config(), specs())
    assert engine.restore(document, SEC, 0)
    assert all(link.health.state is S.UNKNOWN for link in engine.links)


def test_reload_keeps_what_stays():
    host = Host()
    host.engine.links[3].carrier = False
    host.run(10 * MS)
    host.engine.configure(config(3, "[hold]\nhold_down_s = 9\n"), specs(3))
    assert len(host.engine.links) == 3
    assert host.states() == [S.UP] * 3
    assert host.engine.links[0].health.hold.hold_down_ns == 9 * SEC
    host.engine.configure(config(4), specs(4))
    assert host.states()[3] is S.UNKNOWN, "what went away begins anew"


def test_due_at_is_when_the_next_timer_runs_out():
    host = Host()
    host.engine.links[0].health.update(Facts(downs=1), host.now)
    host.run(10 * MS)
    due = host.outcome.due_at
    assert 1.9 * SEC < due - host.now <= 2 * SEC


def test_no_input_ever_leaves_nothing_carrying():
    """All combinations of carrier and silence on three rails."""
    for carriers in itertools.product([True, False], repeat=3):
        for silent in itertools.product([True, False], repeat=3):
            host = Host(rails=3)
            for link, carrier in zip(host.engine.links, carriers, strict=True):
                link.carrier = carrier
            host.silence(*(r for r in range(3) if silent[r]))
            host.run(300 * MS, step=30 * MS)
            assert any(host.weights()), (carriers, silent)


@given(
    rails=st.integers(1, 8),
    share=st.sampled_from([0.0, 0.25, 0.5]),
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.integers(1, 40)),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_probes_alone_never_take_more_than_their_share(rails, share, steps):
    """Whatever falls silent or loses, in whatever order and for how long, while carriers stay."""
    host = Host(rails=rails, extra=f"[steer]\nmax_probe_share = {share}\n")
    for silent, lossy, tens in steps:
        host.restore()
        host.silence(*silent)
        for link in host.engine.links:
            link.worse = "10 % lost" if link.index in lossy else ""
        for _ in range(tens):
            host.run(50 * MS, step=50 * MS)
            taken = [weight for weight in host.weights() if weight < 1000]
            assert len(taken) <= share * rails
            assert 1000 in host.weights()


def test_what_a_prober_wrote_before_it_stopped_waits_until_it_runs_again():
    """Daemon and prober were stopped together, between the table and the verdict."""
    host = Host()
    host.run(SEC)
    host.silence(0)
    host.now += 10 * I
    late = host.engine.evaluate(host.views(), host.now + 900 * MS, as_of=host.now)
    assert late.changes == []
    assert host.engine.evaluate(host.views(), host.now).changes, "this table is what tells it"
