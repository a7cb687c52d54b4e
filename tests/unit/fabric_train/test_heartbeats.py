from hypothesis import given
from hypothesis import strategies as st

from fabric_train.rules.heartbeats import GRACE_S, LIMIT_S, TICK_S, Heartbeats


class Clock:
    """Ticks as the shell does."""

    def __init__(self, start=0.0):
        self.now = start
        self.core = Heartbeats(start)

    def run(self, seconds, *talking):
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now += TICK_S
            for host in talking:
                self.core.received(host, self.now)
            self.core.tick(self.now)

    @property
    def said(self):
        return self.core.hears(), self.core.misses()


def started(*hosts, start=0.0):
    clock = Clock(start)
    clock.core.set_members(hosts, clock.now)
    for host in hosts:
        clock.core.connected(host, clock.now)
    return clock


def test_a_peer_that_falls_silent_is_missed_after_the_limit():
    clock = started("b", "c")
    clock.run(1.0, "b", "c")
    clock.run(LIMIT_S - TICK_S, "b")
    assert clock.said == (["b", "c"], [])
    clock.run(2 * TICK_S, "b")
    assert clock.said == (["b"], ["c"])
    clock.run(TICK_S, "b", "c")
    assert clock.said == (["b", "c"], [])


def test_a_connection_that_ends_is_missed_at_once():
    clock = started("b")
    clock.core.disconnected("b")
    assert clock.said == ([], ["b"])
    clock.core.connected("b", clock.now)
    assert clock.said == (["b"], [])


def test_who_did_not_run_itself_misses_nobody():
    """A busy host, or one that was frozen: its own gap is no silence of others."""
    clock = started("b")
    clock.run(1.0, "b")
    clock.now += 30.0
    clock.core.tick(clock.now)
    assert clock.said == (["b"], [])
    clock.run(LIMIT_S + TICK_S)
    assert clock.said == ([], ["b"])


def test_a_member_that_was_never_heard_is_missed_after_a_grace():
    clock = Clock()
    clock.core.set_members(["b"], clock.now)
    clock.run(GRACE_S - TICK_S)
    assert clock.said == ([], [])
    clock.run(3 * TICK_S)
    assert clock.said == ([], ["b"])


def test_only_members_are_heard_or_missed():
    clock = started("b")
    clock.core.connected("z", clock.now)
    assert clock.said == (["b"], [])
    clock.core.set_members(["z"], clock.now)
    assert clock.said == (["z"], [])
    clock.core.forget("z")
    clock.core.received("z", clock.now)
    clock.core.disconnected("z")
    assert clock.said == ([], [])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["tick", "receive", "connect", "disconnect", "members", "gap"]),
        st.sampled_from("bcd"),
    ),
    max_size=60,
)


@given(STEPS)
def test_nobody_is_both_heard_and_missed_and_who_spoke_within_the_limit_is_heard(steps):
    clock = started("b", "c")
    members, connected, spoke = {"b", "c"}, {"b", "c"}, {}
    for step, host in steps:
        if step == "tick":
            clock.run(TICK_S)
        elif step == "gap":
            clock.now += 7.0
            clock.core.tick(clock.now)
        elif step == "receive" and host in connected:
            clock.core.received(host, clock.now)
            spoke[host] = clock.now
        elif step == "connect":
            connected.add(host)
            clock.core.connected(host, clock.now)
            spoke[host] = clock.now
        elif step == "disconnect":
            connected.discard(host)
            clock.core.disconnected(host)
        elif step == "members":
            members ^= {host}
            clock.core.set_members(members, clock.now)
        hears, misses = clock.said
        assert not set(hears) & set(misses)
        assert set(hears) | set(misses) <= members
        assert set(hears) <= connected
        for one in members & connected & spoke.keys():
            if clock.now - spoke[one] < LIMIT_S:
                assert one in hears
