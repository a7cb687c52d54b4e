"""TAI over fabric time: what a host with a master says, and what others make of it."""

import pytest

from clocksync.mesh.codec import decode
from clocksync.mesh.messages import Origin, Trace
from clocksync.mesh.trace import Fabric, TaiKeeper
from clocksync.page.clock_page import ClockError, State
from clocksync.page.tai_page import NO_TAI
from clocksync.pair.linear import Linear
from clocksync.ptp.client import Grandmaster, MasterTime

SECOND = 10**9
STEP = SECOND // 10
START = 10**12
FABRIC, TAI = 1_700_000_000 * SECOND, 1_800_000_037 * SECOND
EDGE, OTHER, THIRD = 7, 8, 9
GM = Grandmaster(0xABC, 6, 0x21, 0, 37, True, True, 0)
TAG, UNDER = 5, 99


class Host:
    """A keeper over a clock that is off by so much, and runs at a rate of its own."""

    def __init__(self, number, ahead_ns=0, rate=0.0, bound_ns=100.0, **given):
        self.keeper = TaiKeeper(number, **given)
        self.ahead_ns, self.rate, self.bound_ns = ahead_ns, rate, bound_ns
        self.fabric_off_ns = 0
        self.under = UNDER

    def clock(self, true):
        return self.ahead_ns + true + round(self.rate * (true - START))

    def fabric(self, true):
        now, slope = self.clock(true), -self.rate
        ns = FABRIC + (true - START) + self.fabric_off_ns
        return Fabric(Linear(now, ns, 0.0, slope), self.bound_ns, 1e-9, TAG, self.under)

    def own(self, true, *, ahead_ns=0, tracking=True, grandmaster=GM):
        # Real time runs a little faster than fabric time.
        ns = TAI + (true - START) + round(20e-6 * (true - START)) + ahead_ns
        tai = Linear(self.clock(true), ns, 0.0, 20e-6 - self.rate)
        return MasterTime(tai, 5000.0, 1e-9, 4000.0, grandmaster, tracking)

    def step(self, true, own=None, fabric=True):
        return self.keeper.step(self.clock(true), self.fabric(true) if fabric else None, own)

    def hear(self, other):
        for data in other.keeper.messages():
            self.keeper.hear(decode(data))

    def error(self, true):
        found = self.keeper.said.line.at(self.clock(true))
        return found.ns - (TAI + (true - START) + round(20e-6 * (true - START))), found.bound_ns


def run(hosts, steps, begin=START, master=True, **own):
    """The first host has a master; each hears the one before it."""
    now = begin
    for number in range(steps):
        now = begin + number * STEP
        for place, host in enumerate(hosts):
            if place:
                host.hear(hosts[place - 1])
            with_master = host is hosts[0] and master
            host.step(now, host.own(now, **own) if with_master else None)
    return now


@pytest.fixture
def chain():
    return [
        Host(EDGE, 3 * SECOND, 30e-6, 200.0), Host(OTHER, -SECOND, -25e-6, 300.0),
        Host(THIRD, 0, 10e-6, 400.0),
    ]  # fmt: skip


def test_every_host_knows_tai_within_a_bound_that_has_all_parts(chain):
    now = run(chain, 30)
    for host, least in zip(chain, (5000, 5500, 5600), strict=True):
        said = host.keeper.said
        assert said.line.state is State.LOCKED
        assert said.line.reference == EDGE
        assert said.source.utc_offset_s == 37
        assert said.source.traceable
        error, bound = host.error(now)
        assert abs(error) <= bound
        assert abs(error) < 200
        assert least <= bound < least + 300
    assert {type(decode(message)) for message in chain[2].keeper.messages()} == {Trace, Origin}


def test_an_error_of_fabric_time_within_its_bound_is_within_tais(chain):
    chain[0].fabric_off_ns, chain[2].fabric_off_ns = 200, -400
    now = run(chain, 30)
    error, bound = chain[2].error(now)
    assert 500 < abs(error) <= bound


def test_a_master_that_is_silent_is_holdover_everywhere_and_the_bound_grows(chain):
    now = run(chain, 30)
    epochs = [host.keeper.said.line.epoch for host in chain]
    now = run(chain, 50, now + STEP, tracking=False)
    for host in chain:
        assert host.keeper.said.line.state is State.HOLDOVER
        error, bound = host.error(now)
        assert abs(error) <= bound
    assert [host.keeper.said.line.epoch for host in chain] == epochs


def test_a_host_with_the_master_that_dies_is_held_over_by_the_others(chain):
    now = run(chain, 30)
    before = chain[1].error(now)[1]
    for number in range(1, 200):
        for host in chain[1:]:
            host.step(now + number * STEP)
    said = chain[1].keeper.said.line
    assert said.state is State.HOLDOVER
    error, bound = chain[1].error(now + 199 * STEP)
    assert abs(error) <= bound
    assert bound > before
    chain[1].step(now + 40_000 * STEP)
    assert chain[1].keeper.messages() == [], "after an hour it is nothing"


def test_a_host_that_forgot_what_it_said_hears_it_from_its_neighbours(chain):
    edge, other = chain[:2]
    now = run(chain, 30)
    edge.keeper.forget()  # its clock begins anew, and the master is silent
    for _ in range(50):
        now += STEP
        edge.hear(other)
        edge.step(now)
        other.hear(edge)
        other.step(now)
    said = edge.keeper.said.line
    assert (said.state, said.reference) == (State.HOLDOVER, EDGE)
    error, bound = edge.error(now)
    assert abs(error) <= bound
    for _ in range(40_000):  # from one to the other and back it does not stay young
        now += STEP
        edge.hear(other)
        edge.step(now)
        other.hear(edge)
        other.step(now)
    assert not edge.keeper.messages()
    assert not other.keeper.messages()


def test_what_comes_back_of_ones_own_messages_is_not_heeded_beside_a_master(chain):
    edge, other = chain[:2]
    now = run(chain, 30)
    for _ in range(20):
        now += STEP
        edge.hear(other)  # tracking, they say; not for these two seconds
        edge.step(now, edge.own(now, tracking=False))
    assert edge.keeper.said.line.state is State.HOLDOVER


def test_another_host_with_a_master_takes_over_and_all_agree_on_the_better(chain):
    edge, other, third = chain
    worse = GM._replace(clock_class=7)
    for number in range(60):
        now = START + number * STEP
        if number < 30:
            edge.step(now, edge.own(now))
            third.hear(edge)
            other.hear(edge)
        other.step(now, other.own(now, grandmaster=worse))
        third.hear(other)
        third.step(now)
        if number == 29:
            assert third.keeper.said.line.reference == EDGE
            assert other.keeper.said.line.reference == EDGE, "class 6 before 7, also its own"
    assert third.keeper.said.line.reference == OTHER, "after three seconds"
    assert third.keeper.said.line.state is State.LOCKED
    assert third.keeper.steps == 0


def test_messages_of_another_references_time_are_not_mixed_in(chain):
    now = run(chain[:2], 30)
    chain[1].under = UNDER + 1
    chain[1].fabric_off_ns = 10**6
    chain[1].hear(chain[0])
    said = chain[1].step(now + STEP)
    assert said.line.state is State.HOLDOVER
    error, bound = chain[1].error(now + STEP)
    assert abs(error) <= bound
    chain[0].under, chain[0].fabric_off_ns = UNDER + 1, 10**6
    now = run(chain[:2], 5, now + 2 * STEP)
    assert chain[1].keeper.said.line.state is State.LOCKED
    assert abs(chain[1].error(now)[0]) < 200


def test_a_step_of_the_master_is_another_epoch_and_counted(chain):
    now = run(chain, 30)
    epochs = [host.keeper.said.line.epoch for host in chain]
    run(chain, 10, now + STEP, ahead_ns=-SECOND)
    for host, epoch in zip(chain, epochs, strict=True):
        assert host.keeper.said.line.epoch > epoch
        assert host.keeper.steps == 1


def test_a_time_that_is_no_tai_is_not_passed_on(chain):
    run(chain, 10, grandmaster=GM._replace(ptp_timescale=False))
    assert [host.keeper.said for host in chain] == [NO_TAI] * 3
    assert chain[0].keeper.messages() == []


def test_without_fabric_time_the_host_with_the_master_knows_tai_all_the_same(chain):
    edge = chain[0]
    edge.step(START, edge.own(START), fabric=False)
    assert edge.keeper.said.line.state is State.LOCKED
    assert edge.keeper.messages() == []


def test_a_restart_goes_on_with_the_page_and_its_epoch(chain):
    now = run(chain, 30)
    before = chain[0].keeper.said
    again = Host(EDGE, 3 * SECOND, 30e-6, 200.0, last=before)
    said = again.step(now + STEP)
    assert said.line.state is State.HOLDOVER
    run([again], 3, now + 2 * STEP)
    assert again.keeper.said.line.state is State.LOCKED
    assert again.keeper.said.line.epoch == before.line.epoch
    again.keeper.forget()
    assert again.step(now + 6 * STEP, fabric=False) == NO_TAI


def test_old_messages_do_not_take_the_place_of_new_ones_nor_those_of_the_future(chain):
    now = run(chain[:2], 30)
    keeper, fabric = chain[1].keeper, chain[1].fabric(now).time.ns
    ahead = TAI - FABRIC
    base = Trace(TAG, EDGE, fabric - 50 * SECOND, ahead + 10**6, 0.0, 10.0, 1e-9, UNDER)
    for message in (
        base,
        base._replace(tag=TAG + 1, fabric_ns=fabric + 1),
        base._replace(id=OTHER, fabric_ns=fabric + 1),
        base._replace(id=3, fabric_ns=fabric + 3600 * SECOND),
    ):
        keeper.hear(message)
    chain[1].step(now + STEP)
    assert keeper.said.line.reference == EDGE
    assert abs(chain[1].error(now + STEP)[0]) < 200


@pytest.mark.parametrize("later", [2**60, 3600 * SECOND, SECOND])
def test_an_origin_of_the_future_does_not_stay(chain, later):
    now = run(chain[:2], 30)
    keeper = chain[1].keeper
    said = Origin(TAG, EDGE, chain[1].fabric(now).time.ns + later, 0xBAD, 6, 0x21, 0, 30, True, 0)
    keeper.hear(said)
    chain[1].step(now)
    assert keeper.said.source.grandmaster == GM.identity, "it is not taken"
    now = run(chain[:2], 10, now + STEP)
    assert keeper.said.source == chain[0].keeper.said.source


def test_a_trace_of_the_future_does_not_keep_the_true_one_out_for_a_moment(chain):
    now = run(chain[:2], 30)
    keeper, fabric = chain[1].keeper, chain[1].fabric(now).time.ns
    lie = Trace(TAG, EDGE, fabric + SECOND, TAI - FABRIC + 10**6, 0.0, 10.0, 1e-9, UNDER)
    keeper.hear(lie)
    assert chain[1].step(now).line.state is State.LOCKED
    assert abs(chain[1].error(now)[0]) < 200
    keeper.hear(lie._replace(bound_ns=1e17))
    chain[1].step(now + STEP)
    now = run(chain[:2], 31, now + 2 * STEP)
    assert abs(chain[1].error(now)[0]) < 200, "with a bound of years it is one for seconds"


def test_an_origin_grows_old_though_its_host_goes_on(chain):
    now = run(chain[:2], 3)
    keeper = chain[1].keeper
    assert keeper.said.source.grandmaster == GM.identity
    for later in (1800, 3590, 3601, 3700):
        at = now + later * SECOND
        chain[0].step(at, chain[0].own(at))
        for message in map(decode, chain[0].keeper.messages()):
            if isinstance(message, Trace):
                keeper.hear(message)
        chain[1].step(at)
        assert keeper.said.line.state is State.LOCKED
        named = GM.identity if later < 3600 else 0
        assert keeper.said.source.grandmaster == named


def test_an_origin_without_a_trace_is_nothing():
    keeper = TaiKeeper(OTHER)
    keeper.hear(Origin(TAG, EDGE, FABRIC, 1, 6, 0x21, 0, 37, True, 0))
    with pytest.raises(ClockError):
        keeper.step(START, None, None).line.at(START)
