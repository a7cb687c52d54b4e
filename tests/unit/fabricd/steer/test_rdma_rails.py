"""RDMA beside IP: told apart, steered apart, and brought back apart."""

import dataclasses

import pytest
from engine_host import MS, SEC, Host, I, config, specs
from hypothesis import given
from hypothesis import strategies as st

from fabricd.detect.silence import PathView
from fabricd.state.rdma_rails import GIVEN_UP_NS
from fabricd.steer.modes import Mode
from fabricd.steer.page import SteerPage, decode
from fabricd.steer.policy import FULL
from fabricd.steer.publisher import RDMA, Publisher
from fabricd.timeline.rows import evaluation_events
from telemetry.events import EventKind
from telemetry.events import LinkState as S


class RdmaHost(Host):
    """A host whose links have verbs ports; RDMA is silenced apart from IP."""

    def __init__(self, rails=4, peers="abc", probed=None, extra=""):
        self.rdma_silent = {}
        self.probed = list(range(rails) if probed is None else probed)
        super().__init__(rails, peers, extra)
        self.engine.configure(config(rails, extra), specs(rails, peers), self.probed)
        self.run(2 * I)
        self.changes.clear()

    def silence_rdma(self, *where):
        """Silence RDMA of (link, peer) pairs from now on; a number silences the whole link."""
        for path in self.engine.rdma.paths:
            link = self.engine.rdma.beside(path.spec.link).index
            if link in where or (link, path.spec.peer) in where:
                self.rdma_silent.setdefault(path.index, self.now)

    def restore(self):
        super().restore()
        self.rdma_silent.clear()

    def rdma_views(self):
        out = []
        for path in self.engine.rdma.paths:
            heard = self.rdma_silent.get(path.index, self.now)
            missed = max(0, (self.now - heard - I // 2) // I)
            out.append(
                PathView(path.index, path.spec.link, path.spec.peer, True, missed, 0, I, heard,
                         said_ns=heard, next_ns=heard + I, awake_ns=10**15)
            )  # fmt: skip
        return out

    def run(self, duration, step=10 * MS, prober=True, rdma=True):
        for _ in range(max(1, duration // step)):
            self.now += step
            views = self.views() if prober else None
            over = self.rdma_views() if prober and rdma else ()
            self.outcome = self.engine.evaluate(views, self.now, rdma=over)
            self.changes += self.outcome.changes

    def rdma_states(self):
        return [link.health.state for link in self.engine.rdma.links]

    def rdma_weights(self):
        return [rail.rdma and rail.rdma.weight for rail in self.engine.plan().rails]


def test_heard_rdma_is_up_and_weighs_as_the_link():
    host = RdmaHost()
    assert host.rdma_states() == [S.UP] * 4
    assert host.rdma_weights() == [FULL] * 4 == host.weights()
    assert host.engine.plan().paths == ()


def test_broken_rdma_takes_rdma_alone():
    host = RdmaHost()
    host.silence_rdma(1)
    host.run(SEC)
    assert host.rdma_states() == [S.UP, S.DOWN, S.UP, S.UP]
    assert host.states() == [S.UP] * 4
    assert host.rdma_weights() == [FULL, 0, FULL, FULL]
    assert host.weights() == [FULL] * 4
    assert {c.netdev for c in host.changes} == {"rail1"}
    assert all(c.rdma for c in host.changes)


def test_broken_ip_takes_ip_alone():
    host = RdmaHost()
    host.silence(1)
    host.run(SEC)
    assert host.states() == [S.UP, S.DOWN, S.UP, S.UP]
    assert host.rdma_states() == [S.UP] * 4
    assert host.weights() == [FULL, 0, FULL, FULL]
    assert host.rdma_weights() == [FULL] * 4
    assert not any(c.rdma for c in host.changes)


@pytest.mark.parametrize("broken", ["rdma", "ip"])
def test_either_is_told_within_200_ms(broken):
    host = RdmaHost()
    began = host.now
    (host.silence_rdma if broken == "rdma" else host.silence)(2)
    while host.rdma_weights()[2] == host.weights()[2] == FULL:
        host.run(10 * MS)
        assert host.now - began < 200 * MS


def test_both_broken_take_both():
    host = RdmaHost()
    host.silence(1)
    host.silence_rdma(1)
    host.run(SEC)
    assert host.weights()[1] == host.rdma_weights()[1] == 0
    assert host.states()[1] is host.rdma_states()[1] is S.DOWN


def test_one_rail_each_transport_is_a_witness_of_the_other():
    """On a host of one rail IP that is broken is no silent peer, for RDMA is heard."""
    host = RdmaHost(rails=1)
    host.silence(0)
    host.run(SEC)
    assert host.outcome.silent_hosts == frozenset()
    host.silence_rdma(0)
    host.run(SEC)
    assert host.outcome.silent_hosts == frozenset("abc")


def test_a_lost_carrier_takes_both_and_is_no_fault_of_rdma():
    host = RdmaHost()
    link = host.engine.links[1]
    link.carrier, link.pending_downs = False, 1
    host.silence(1)
    host.silence_rdma(1)
    host.run(SEC)
    assert host.weights()[1] == host.rdma_weights()[1] == 0
    assert host.rdma_states()[1] is S.UP
    link.carrier = True
    host.restore()
    host.run(20 * SEC)
    assert host.weights()[1] == host.rdma_weights()[1] == FULL
    assert not any(c.rdma for c in host.changes)


def test_a_port_that_is_not_active_takes_both():
    host = RdmaHost()
    host.engine.links[1].port_active = False
    host.silence_rdma(1)
    host.run(SEC)
    assert host.weights()[1] == host.rdma_weights()[1] == 0
    assert host.rdma_states()[1] is S.UP


def test_rdma_returns_after_the_hold_down():
    host = RdmaHost()
    host.silence_rdma(1)
    host.run(SEC)
    host.restore()
    host.run(SEC)
    assert host.rdma_states()[1] is S.HOLD
    assert host.rdma_weights()[1] == 0
    host.run(20 * SEC)
    assert host.rdma_states()[1] is S.UP
    assert host.rdma_weights()[1] == FULL


def test_one_peers_broken_rdma_is_an_exception_of_that_path():
    host = RdmaHost()
    host.silence_rdma((1, "b"))
    host.run(SEC)
    plan = host.engine.plan()
    assert [(p.netdev, p.remote, p.weight, p.rdma.weight) for p in plan.paths] == [
        ("rail1", "10.1.0.98", FULL, 0)
    ]
    assert host.rdma_weights() == [FULL] * 4
    assert host.engine.links[1].health.state is S.UP


def test_one_peers_broken_ip_leaves_rdma_there():
    host = RdmaHost()
    host.silence((1, "b"))
    host.run(SEC)
    entry = host.engine.plan().paths[0]
    assert (entry.weight, entry.rdma.weight) == (0, FULL)


def test_probes_take_rdma_from_at_most_half_of_the_rails():
    host = RdmaHost()
    host.silence_rdma(0, 1, 2, 3)
    host.run(SEC)
    assert sorted(host.rdma_weights()) == [0, 0, FULL, FULL]
    assert len(host.engine.rdma.refused) == 2


def test_rails_without_verbs_have_no_rdma_weight():
    host = RdmaHost(probed=[2])
    assert host.rdma_weights() == [None, None, FULL, None]
    host.silence_rdma(2)
    host.run(SEC)
    assert host.rdma_weights() == [None, None, FULL, None]  # it is all of them: the last resort
    assert host.engine.rdma.refused


def test_a_host_without_verbs_is_as_it_was():
    plain, off = Host(), RdmaHost(probed=[])
    for host in (plain, off):
        host.silence(1)
        host.run(SEC)
    assert plain.engine.plan() == off.engine.plan()
    assert all(rail.rdma is None for rail in off.engine.plan().rails)


def test_the_detector_off_takes_nothing_and_gives_back():
    host = RdmaHost()
    host.silence_rdma(1)
    host.run(SEC)
    host.engine.overrides = dataclasses.replace(
        host.engine.overrides, off=frozenset({"probe-rdma"})
    )
    host.run(20 * MS)
    assert host.rdma_weights() == [None] * 4
    host.engine.overrides = dataclasses.replace(
        host.engine.overrides, off=frozenset({"probe-link"})
    )
    host.run(20 * MS)
    assert host.rdma_weights() == [FULL, 0, FULL, FULL]


def test_what_nobody_probes_any_more_is_not_known():
    host = RdmaHost()
    host.silence_rdma(1)
    host.run(SEC)
    host.run(SEC, rdma=False)
    assert host.rdma_weights()[1] == 0, "a restarted prober is back in less"
    host.run(GIVEN_UP_NS + SEC, rdma=False)
    assert host.rdma_weights() == [None] * 4


def test_a_restarted_daemon_knows_what_was_broken():
    host = RdmaHost()
    host.silence_rdma(1, (2, "b"))
    host.run(SEC)
    document = host.engine.save(host.now)
    after = RdmaHost()
    assert after.engine.restore(document, after.now, 0) == []
    assert after.rdma_weights()[1] == 0
    assert after.engine.restore(document | {"rdma": 7}, after.now, 0) == ["rdma"]
    assert after.engine.restore(document | {"rdma": {"links": {"rail1": 7}}}, after.now, 0) == [
        "rdma links rail1"
    ]


def test_a_reload_keeps_what_is_known():
    host = RdmaHost()
    host.silence_rdma(1)
    host.run(SEC)
    host.engine.configure(config(4), specs(4), [1, 0])
    assert [x.netdev for x in host.engine.rdma.links] == ["rail1", "rail0"]
    assert host.rdma_weights() == [FULL, 0, None, None]


def test_rows_of_the_timeline_and_the_page(tmp_path):
    host = RdmaHost()
    page = SteerPage(tmp_path / "steer", 1)
    page.open(host.now)
    publisher, modes = Publisher(page), {f"rail{r}": Mode.STEER for r in range(4)}
    publisher.publish(host.engine, modes, host.now)
    before = decode((tmp_path / "steer").read_bytes()).rails[1].epoch
    host.silence_rdma(1)
    host.run(SEC)
    told = publisher.publish(host.engine, modes, host.now)
    assert [(e.kind, e.link, e.data) for e in told] == [
        (EventKind.STEER, "rail1", {"weight": 0, "before": FULL, "transport": RDMA})
    ]
    assert "nothing heard from a, b, c" in told[0].reason
    entry = decode((tmp_path / "steer").read_bytes()).rails[1]
    assert (entry.weight, entry.rdma.weight, entry.rdma.state) == (FULL, 0, S.DOWN)
    assert entry.epoch == before + 1
    assert publisher.rail_weights()["rail1"] == FULL
    assert publisher.rdma_weights() == {"rail1": 0}
    rows = evaluation_events(host.outcome, flaps_per_hour=9, known={})
    assert rows == []
    host.outcome.changes = host.changes
    kinds = {e.kind for e in evaluation_events(host.outcome, flaps_per_hour=9, known={})}
    assert kinds == {EventKind.RDMA_STATE}


def test_a_hard_fault_is_one_row_of_steering(tmp_path):
    host = RdmaHost()
    page = SteerPage(tmp_path / "steer", 1)
    page.open(host.now)
    publisher, modes = Publisher(page), {f"rail{r}": Mode.STEER for r in range(4)}
    publisher.publish(host.engine, modes, host.now)
    host.engine.links[1].carrier, host.engine.links[1].pending_downs = False, 1
    host.run(SEC)
    told = publisher.publish(host.engine, modes, host.now)
    assert [(e.link, e.data) for e in told] == [("rail1", {"weight": 0, "before": FULL})]


@pytest.mark.patient
@given(
    st.lists(
        st.tuples(st.sampled_from(["ip", "rdma", "carrier", "restore", "wait"]), st.integers(0, 3)),
        max_size=12,
    )
)
def test_whatever_happens_something_carries(steps):
    """No order of faults takes the last rail, and no fault of RDMA moves the weight of IP."""
    host, plain = RdmaHost(), Host()
    for what, rail in steps:
        if what == "ip":
            host.silence(rail)
            plain.silence(rail)
        elif what == "rdma":
            host.silence_rdma(rail)
        elif what == "carrier":
            host.engine.links[rail].carrier = plain.engine.links[rail].carrier = False
        elif what == "restore":
            for each in (host, plain):
                each.restore()
                for link in each.engine.links:
                    link.carrier = True
        host.run(300 * MS)
        plain.run(300 * MS)
        assert any(host.weights())
        assert sum(w == 0 for w in host.rdma_weights()) <= 2 + sum(
            x.health.fault_was_hard for x in host.engine.links
        )
        if not any(host.silent.values()):
            assert host.weights() == plain.weights()
