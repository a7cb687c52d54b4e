"""The unicast client against masters in virtual time: losses, denials, silence, steps."""

import itertools

import pytest
from ptp_world import FLAGS, SECOND, STEP, TAI, US, World

from clocksync.ptp.contract import Contract, Standing, Terms
from clocksync.ptp.messages import (
    Acknowledge,
    Announce,
    Cancel,
    DelayReq,
    DelayResp,
    Flag,
    Grant,
    Header,
    PortIdentity,
    Signaling,
    Sync,
    Type,
    encode,
)


def test_it_negotiates_and_tracks_within_the_bound():
    world = World({"rate": 17e-6})
    checks = []

    def look():
        if world.client.time(world.now) is not None:
            error, bound = world.error()
            checks.append(abs(error) <= bound)

    world.run(40, look)
    found = world.client.time(world.now)
    assert found.tracking
    assert len(checks) > 300
    assert all(checks)
    assert abs(world.error()[0]) < 1000, "both ways are alike"
    assert found.half_rtt_ns == pytest.approx(20_500, abs=1500)
    assert found.time.slope == pytest.approx(17e-6, abs=1e-7)
    whose = found.grandmaster
    assert (whose.utc_offset_s, whose.ptp_timescale, whose.traceable) == (37, True, True)
    assert found.bound_ns < 30_000


def test_ways_that_differ_are_in_the_bound():
    world = World({}, more_back=30_000)
    world.run(30)
    error, bound = world.error()
    assert abs(error) == pytest.approx(15_000, abs=1500), "half of the difference, unseen"
    assert bound > 15_000


def test_one_step_syncs_and_late_stamps_serve_as_well():
    world = World({})
    world.masters[0].one_step = True
    world.run(20)
    assert abs(world.error()[0]) < 2000


def test_messages_out_of_order_and_lost_are_paired_all_the_same():
    world = World({"rate": -5e-6}, loss=0.2)
    world.shuffle = 50_000_000
    world.run(60)
    assert world.client.time(world.now).tracking
    error, bound = world.error()
    assert abs(error) <= bound
    assert abs(error) < 3000


def test_messages_that_stood_in_a_queue_do_not_count():
    world = World({}, jitter=400_000)
    world.run(60)
    error, bound = world.error()
    assert abs(error) <= bound
    assert abs(error) < 100_000
    assert world.client.time(world.now).half_rtt_ns < 150_000


def test_grants_are_renewed_before_they_run_out():
    world = World({})
    world.run(100)
    master = world.masters[0]
    asked = [now for now, tlv in master.requests if tlv.type == Type.SYNC]
    gaps = [(b - a) / SECOND for a, b in itertools.pairwise(asked)]
    assert all(25 < gap <= 60 for gap in gaps)
    assert len(gaps) >= 2
    assert world.client.masters[0].lost == 0


def test_what_is_denied_is_asked_for_again_and_more_slowly():
    world = World({})
    world.masters[0].deny = {Type.SYNC}
    world.run(35)
    assert world.client.time(world.now) is None
    asked = [tlv.interval for _, tlv in world.masters[0].requests if tlv.type == Type.SYNC]
    assert asked == [-3, -2, -1, 0]
    world.masters[0].deny = set()
    world.run(30)
    assert world.client.time(world.now).tracking
    contract = world.client.masters[0].contracts[Type.SYNC]
    assert (contract.denied, contract.granted, contract.interval) == (4, True, 0)


def test_a_master_that_vanishes_is_held_over_and_one_that_forgot_us_is_asked_again():
    world = World({"rate": 3e-6})
    world.run(40)
    before = world.error()[1]
    world.masters[0].up = False
    world.run(30)
    found = world.client.time(world.now)
    assert not found.tracking
    error, bound = world.error()
    assert abs(error) <= bound
    assert bound > before
    assert world.client.masters[0].lost == 1
    world.masters[0].restart()
    world.run(25)
    assert world.client.time(world.now).tracking
    assert world.client.masters[0].estimator.steps == 0, "it is the same time"


def test_a_grant_that_is_taken_back_is_acknowledged_and_asked_for_later():
    world = World({})
    world.run(10)
    master = world.masters[0]
    heard = []
    hear = master.hear
    master.hear = lambda message, now: (heard.append(message), hear(message, now))
    master.until.pop(Type.SYNC)
    master.tell(Signaling(master.head(), PortIdentity(US, 1), (Cancel(Type.SYNC),)), world.now)
    world.run(5)
    acks = [
        t
        for m in heard
        if isinstance(m, Signaling)
        for t in m.tlvs
        if type(t).__name__ == "Acknowledge"
    ]
    assert [ack.type for ack in acks] == [Type.SYNC]
    assert not world.client.time(world.now).tracking
    world.run(15)
    assert world.client.time(world.now).tracking


def test_a_flood_of_cancels_is_answered_once():
    """Anybody who can send with a master's address can say it."""
    world = World({})
    world.run(10)
    master = world.masters[0]
    kinds = (Type.ANNOUNCE, Type.SYNC, Type.DELAY_RESP)
    for number in range(500):
        said = Signaling(
            Header(master.port, number), PortIdentity(US, 1), tuple(map(Cancel, kinds)) * 70
        )
        world.client.receive(0, encode(said), world.now, world.now)
    (answer,) = [m for _, m in world.client.step(world.now) if isinstance(m, Signaling)]
    assert encode(answer)
    assert [t.type for t in answer.tlvs if isinstance(t, Acknowledge)] == sorted(kinds)
    world.run(40)
    assert world.client.time(world.now).tracking


def test_over_a_clock_that_went_back_it_begins_anew_at_once():
    world = World({"rate": 3e-6})
    world.run(10)
    world.shift = -500 * SECOND
    world.client.reset()
    assert world.client.time(world.now + world.shift) is None
    world.run(20)
    assert world.client.time(world.now + world.shift).tracking
    error, bound = world.error()
    assert abs(error) <= bound


@pytest.mark.parametrize("step", [5 * 10**6, -5 * 10**6, 37 * SECOND])
def test_a_step_of_the_master_is_seen_and_not_averaged(step):
    world = World({"rate": 1e-6})
    world.run(35)
    world.masters[0].ahead_ns += step
    between, none = [], []

    def look():
        if world.client.time(world.now) is None:
            none.append(world.now)
            return
        error, bound = world.error()
        # The old time or the new one, and nothing between.
        between.append(min(abs(error), abs(error + step)) <= bound)

    world.run(8, look)
    assert all(between)
    assert len(none) < 40, "while the new line is made"
    assert abs(world.error()[0]) < 3000
    assert world.client.masters[0].estimator.steps == 1
    assert world.client.time(world.now).tracking


def test_the_better_of_two_masters_is_followed_and_the_other_takes_over():
    world = World({"clock_class": 7}, {"clock_class": 6, "ahead_ns": 300})
    world.run(30)
    assert world.client.best.index == 1
    assert world.client.time(world.now).grandmaster.clock_class == 6
    world.masters[1].up = False
    silent = []
    world.run(6, lambda: silent.append(world.client.time(world.now).tracking))
    assert world.client.best.index == 0
    assert silent[-1], "it was timed all the while: no start anew"
    assert world.client.status.changes == 1
    assert abs(world.error(0)[0]) < 3000
    world.masters[1].restart()
    world.run(20)
    assert world.client.best.index == 1, "and the better one comes back"


def test_a_grandmaster_that_gets_worse_is_left():
    world = World({"clock_class": 6}, {"clock_class": 7})
    world.run(20)
    assert world.client.best.index == 0
    world.masters[0].said["clock_class"] = 52
    world.run(5)
    assert world.client.best.index == 1


def test_what_a_grandmaster_says_of_its_accuracy_is_in_the_bound():
    world = World({"accuracy": 0x29})
    world.run(20)
    assert world.error()[1] > 1e6


def test_a_time_that_is_no_tai_is_said_to_be_none():
    world = World({})
    world.masters[0].flags = Flag(0)
    world.run(20)
    whose = world.client.time(world.now).grandmaster
    assert (whose.ptp_timescale, whose.utc_offset_s, whose.traceable) == (False, None, False)


@pytest.mark.parametrize("offset", [0, -1, 9])
def test_an_offset_of_utc_that_never_was_is_none(offset):
    """A free-running grandmaster may call its 0 valid; UTC would be 37 s off."""
    world = World({"utc_offset_s": offset})
    world.run(20)
    whose = world.client.time(world.now).grandmaster
    assert (whose.ptp_timescale, whose.utc_offset_s) == (True, None)
    assert world.client.contradictions(world.now) == ""


def test_masters_that_contradict_each_other_on_utc_leave_it_unknown():
    world = World({"clock_class": 6}, {"clock_class": 7, "utc_offset_s": 36})
    world.run(20)
    found = world.client.time(world.now)
    assert found.tracking, "TAI is what it is"
    assert found.grandmaster.utc_offset_s is None
    assert world.client.contradictions(world.now) == (
        "TAI less UTC: master 0 says 37 s, master 1 says 36 s; UTC is not known"
    )
    world.masters[1].up = False
    world.run(10)
    assert world.client.time(world.now).grandmaster.utc_offset_s == 37
    assert world.client.contradictions(world.now) == ""


def test_masters_that_are_apart_by_more_than_both_bounds_are_said():
    world = World({"clock_class": 6}, {"clock_class": 7, "ahead_ns": 5_000_000})
    world.run(20)
    assert world.client.time(world.now).tracking
    assert world.client.contradictions(world.now) == (
        "TAI: masters 0 and 1 differ by more than both bounds"
    )
    world.masters[1].flags = Flag(0)
    world.run(10)
    assert world.client.contradictions(world.now) == "", "its epoch is its own affair"


def switched(world, **said):
    """Looks at the first master's time for 10 s, after what it gives became what is given."""
    looks = []

    def look():
        found = world.client.time(world.now)
        if found is not None:
            error, bound = world.error()
            looks.append((found.grandmaster, abs(error) <= bound))

    master = world.masters[0]
    master.flags = said.pop("flags", master.flags)
    master.ahead_ns = said.pop("ahead_ns", master.ahead_ns)
    master.said |= said
    world.run(10, look)
    return looks


def test_another_grandmaster_behind_the_same_port_has_nothing_of_the_line_before():
    world = World({"ahead_ns": -1000 * SECOND})
    world.masters[0].flags = Flag(0)
    world.run(12)
    assert not world.client.time(world.now).grandmaster.ptp_timescale
    looks = switched(world, flags=FLAGS, ahead_ns=0, grandmaster=b"\x77" * 8)
    tai = [within for whose, within in looks if whose.ptp_timescale]
    assert len(tai) > 50
    assert all(tai), "TAI, but for the line of before"
    assert world.client.masters[0].estimator.steps == 0, "nobody's time was stepped"


def test_a_grandmaster_that_changes_its_timescale_gives_another_time():
    world = World({"ahead_ns": -1000 * SECOND})
    world.masters[0].flags = Flag(0)
    world.run(12)
    tai = [within for whose, within in switched(world, flags=FLAGS, ahead_ns=0)
           if whose.ptp_timescale]  # fmt: skip
    assert len(tai) > 50
    assert all(tai)


def test_a_grandmaster_that_only_says_more_of_itself_keeps_its_line():
    world = World({})
    world.run(12)
    looks = switched(world, accuracy=0x21, clock_class=7)
    assert len(looks) == 100, "without a gap"
    assert all(within for _, within in looks)


def test_messages_of_others_and_nonsense_are_counted_and_change_nothing():
    world = World({})
    world.run(15)
    before = world.error()
    client, master, now = world.client, world.masters[0], world.now
    other = PortIdentity(b"\x09" * 8, 1)
    wrong = TAI + now + SECOND
    for message in (
        Sync(Header(other, 1), wrong),  # of another port
        Sync(Header(master.port, 1, domain=5), wrong),
        Sync(Header(master.port, 1, sdo=0x100), wrong),
        DelayResp(Header(master.port, 60_000), wrong, PortIdentity(US, 1)),  # never asked
        DelayResp(Header(master.port, 1), wrong, other),
        Signaling(Header(master.port, 1), other, (Cancel(Type.SYNC),)),
        DelayReq(Header(master.port, 1), wrong),
        Announce(Header(master.port, 1), **(master.said | {"steps_removed": 255})),
    ):
        client.receive(0, encode(message), now, now)
    client.receive(0, b"\xff" * 50, now, now)
    assert client.refused() == {
        "source": 1, "domain": 2, "not asked for": 1, "target": 2, "not of a master": 1,
        "not qualified": 1, "malformed": 1,
    }  # fmt: skip
    assert world.error() == before
    world.run(5)
    assert abs(world.error()[0]) < 3000


def test_it_cancels_unicast_transmission():
    world = World({})
    world.run(10)
    ((number, message),) = world.client.cancel_unicast_transmission()
    assert number == 0
    assert {tlv.type for tlv in message.tlvs} == {Type.ANNOUNCE, Type.SYNC, Type.DELAY_RESP}
    assert world.client.cancel_unicast_transmission() == []


def test_a_silent_master_is_asked_ever_less_often():
    contract = Contract(Terms(Type.ANNOUNCE, 0, 1))
    asked = [tenth / 10 for tenth in range(1200) if contract.step(tenth * STEP) is not None]
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert gaps[:5] == pytest.approx([1, 2, 4, 8, 16])
    assert max(gaps) == 16


def test_grants_that_make_no_sense_are_none():
    contract = Contract(Terms(Type.SYNC, -3, 0))
    contract.answer(Grant(Type.SYNC, -3, 60), 0)
    assert contract.standing is Standing.IDLE, "never asked"
    contract.step(0)
    for interval in (-100, 100):
        contract.answer(Grant(Type.SYNC, interval, 60), 0)
        assert contract.standing is Standing.ASKED
