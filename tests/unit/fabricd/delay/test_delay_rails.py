"""Slow rails by the stats pages of a job, condition of a link, what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from slow_job import Job

from fabricd.delay.condition import Condition, ConditionRules, LinkCondition, Seen, Told
from fabricd.delay.rails import SlowRails
from fabricd.delay.view import Standing
from telemetry.events import LinkState
from telemetry.statsdir import ProcessPage

MS = 1_000_000
SEC = 10**9


def feed(rails, job, scans, *args, **named):
    for _ in range(scans):
        rails.feed(job.scan(*args, **named))
    return rails.slow()


def test_alike_rails_are_never_slow():
    for seed in range(10):
        rails, job = SlowRails(), Job(seed=seed)
        for _ in range(60):
            assert not feed(rails, job, 1, 40 * job.dice.uniform(0.5, 2), outstanding=0.7)
        assert rails.compared == {"rail0", "rail1", "rail2", "rail3"}


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("factor", [1.8, 2.5, 10])
def test_the_one_that_takes_longer_is_slow_within_seconds_and_then_not(factor, processes):
    rails, job = SlowRails(), Job(processes=processes)
    assert not feed(rails, job, 10, 40)
    slow = feed(
        rails, job, 10, {"rail2": 40 * factor, "else": 40}, outstanding={"rail2": 0.9, "else": 0.4}
    )
    assert set(slow) == {"rail2"}
    assert "3 other rails of the same job" in slow["rail2"][0].text
    assert not feed(rails, job, 20, 40)


def test_one_long_outage_is_no_slow_rail():
    rails, job = SlowRails(), Job()
    feed(rails, job, 10, 40)
    feed(rails, job, 1, {"rail1": 3000, "else": 40}, messages={"rail1": 2, "else": 40})
    assert not feed(rails, job, 12, 40)


def test_more_bytes_or_other_messages_are_no_slow_rail():
    rails, job = SlowRails(), Job()
    loaded = {"rail0": 90, "else": 45}
    assert not feed(rails, job, 30, loaded, messages={"rail0": 80, "else": 40})
    rails, job = SlowRails(), Job()
    assert not feed(rails, job, 30, loaded, size={"rail0": 4_000_000, "else": 1_000_000})
    assert "rail0" not in rails.compared


def test_late_receivers_without_outstanding_bytes_are_no_slow_rail():
    rails, job = SlowRails(), Job()
    waits = {"rail3": 200, "else": 40}
    assert not feed(rails, job, 30, waits, outstanding={"rail3": 0.1, "else": 0.4})


def test_small_differences_and_few_messages_say_nothing():
    rails, job = SlowRails(), Job()
    assert not feed(rails, job, 30, {"rail3": 0.25, "else": 0.1})
    rails, job = SlowRails(), Job()
    assert not feed(rails, job, 30, {"rail3": 900, "else": 40}, messages=1)
    assert not rails.compared


def test_jobs_are_judged_apart_and_pages_that_turn_back_are_left_out():
    rails, one, two = SlowRails(), Job(name="a"), Job(name="b", seed=2)
    for _ in range(20):
        pages = one.scan(40) + [
            ProcessPage(Path("/y"), 7, p.page, alive=True) for p in two.scan(400)
        ]
        rails.feed(pages)
    assert not rails.slow()
    rails.feed(Job(name="a").scan(1))
    assert not rails.slow()


def test_a_slow_rail_is_forgotten_when_nobody_uses_it():
    rails, job = SlowRails(), Job()
    assert feed(rails, job, 15, {"rail2": 100, "else": 40})
    assert feed(rails, job, 20, 40, messages=0)
    assert not feed(rails, job, 40, 40, messages=0)


CALM = Standing(10, 0, 10)
QUEUED = Standing(10, 8, 10, tuple(f"h{i}" for i in range(8)))
ONE = Standing(10, 1, 10, ("h3",))
NOTHING = Standing()


def seen(rx=CALM, tx=CALM, state=LinkState.UP, slow="", reason=""):
    return Seen(state, reason, rx, tx, slow, True)


def test_congestion_takes_three_steps_to_come_and_ten_to_go():
    link = LinkCondition()
    link.step(seen(), 0)
    assert link.now is Condition.FINE
    link.step(seen(rx=QUEUED), 1)
    link.step(seen(rx=QUEUED), 2)
    assert link.now is Condition.FINE
    assert link.step(seen(rx=QUEUED), 3)
    assert (link.now, link.direction, link.since_ns) == (Condition.CONGESTED, "rx", 3)
    assert "rx 0 µs on 8 of 10 paths" in link.why
    for at_ns in range(4, 13):
        link.step(seen(), at_ns)
        assert link.now is Condition.CONGESTED
        assert link.why == f"queues rx until {at_ns - 3} s ago"
    link.step(seen(rx=QUEUED), 13)
    for at_ns in range(14, 24):
        link.step(seen(), at_ns)
    assert link.now is Condition.FINE


def test_one_peers_port_is_not_ours_but_explains_a_slow_rail():
    link = LinkCondition()
    for at_ns in range(10):
        link.step(seen(tx=ONE), at_ns)
    assert link.now is Condition.FINE
    link.step(seen(tx=ONE, slow="late"), 11)
    assert (link.now, link.direction) == (Condition.CONGESTED, "tx")
    assert "h3" in link.why
    link.step(seen(slow="late"), 12)
    assert link.now is Condition.SLOW


@pytest.mark.parametrize("state", [LinkState.DOWN, LinkState.HOLD, LinkState.DEGRADED])
def test_broken_comes_first(state):
    link = LinkCondition()
    for at_ns in range(5):
        link.step(seen(rx=QUEUED, slow="late"), at_ns)
    link.step(seen(rx=QUEUED, slow="late", state=state, reason="why"), 9)
    assert link.now is Condition.BROKEN
    assert link.why.endswith("why")


def test_nothing_known_is_unknown_and_keeps_what_was():
    link = LinkCondition()
    link.step(Seen(LinkState.UP, "", NOTHING, NOTHING), 0)
    assert link.now is Condition.UNKNOWN
    for at_ns in range(5):
        link.step(seen(rx=QUEUED), at_ns)
    for at_ns in range(29):
        link.step(Seen(LinkState.UP, "", NOTHING, NOTHING), at_ns)
    assert link.now is Condition.CONGESTED
    link.step(Seen(LinkState.UP, "", NOTHING, NOTHING), 30)
    assert link.now is Condition.UNKNOWN


def test_few_changes_are_told_and_the_last_one_is():
    told = Told(ConditionRules(), ("fine",))
    count = 0
    for second in range(600):
        count += told.change(("congested",) if second % 20 < 10 else ("fine",), second * SEC)
    assert count == 4
    now = 601 * SEC
    last = told.last
    other = ("slow",) if last != ("slow",) else ("fine",)
    assert sum(told.change(other, now + s * SEC) for s in range(10)) == 1
    assert told.last == other
