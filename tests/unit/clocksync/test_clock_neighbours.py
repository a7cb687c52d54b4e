"""What a neighbour said, and when it is of no use any more."""

import pytest

from clocksync.mesh.bound import BoundKeeper
from clocksync.mesh.host import MeshHost
from clocksync.mesh.messages import Mesh, Reference, Time
from clocksync.mesh.neighbours import CRYSTALS, TOGETHER_NS, sights, views
from clocksync.pair.model import SECOND, Pair

TAG, PEER, PATH, NOW = 9, 5, 1, 100 * SECOND
MS = 10**6


def line(seen_ns):
    """Both clocks alike."""
    return Pair(
        seen_ns, 0, 0.0, 0.0, 500.0, 500.0, 3.0, 0.0, 2 * SECOND, seen_ns, (1.0, 1.0), 0.0,
        5e-9, 4.0,
    )  # fmt: skip


def said(core, now_ns, *, time=True, term=1, ahead_ns=0):
    """The neighbour's messages of a moment."""
    core.hear(PATH, PEER, now_ns, Mesh(TAG, now_ns, now_ns + ahead_ns, 0.0, 0.0, PEER))
    if time:
        held = Reference(TAG, 100, PEER, term, now_ns, 0, 0.0, 0.0)
        core.hear(PATH, PEER, now_ns, held)
        core.hear(PATH, PEER, now_ns, Time(TAG, PEER, term, now_ns, now_ns, 10.0, 0.0))


def seen(core, now_ns):
    return views(core.edges.values(), TAG, now_ns, SECOND, 64 * SECOND)


@pytest.fixture
def core():
    host = MeshHost(7, 100, 0, 1)
    said(host, NOW - 100 * MS)
    host.estimate(PATH, PEER, line(NOW - 50 * MS))
    said(host, NOW)
    return host


def test_a_neighbour_that_goes_on_saying_is_seen_by_the_line_that_there_is(core):
    assert len(seen(core, NOW + 2 * MS)) == 1
    for tenth in range(1, 40):
        said(core, NOW + tenth * SECOND // 10)
    assert len(seen(core, NOW + 4 * SECOND)) == 1, "a line goes on being used while there is none"


def test_by_a_first_line_only_messages_are_heard_that_came_after_it(core):
    """Its clock was set; it said so much before it knew, and nothing since."""
    for now, edge_is_new in ((NOW + SECOND, True), (NOW + 2 * SECOND, False)):
        if edge_is_new:
            core.path_stepped(PATH, NOW)
        else:
            core.estimate(PATH, PEER, None)
        said(core, now - 100 * MS)
        core.estimate(PATH, PEER, line(now))
        assert seen(core, now + 50 * MS) == []
        core.estimate(PATH, PEER, line(now + 60 * MS))
        assert seen(core, now + 90 * MS) == [], "nor by the next line"
        said(core, now + 100 * MS)
        assert len(seen(core, now + 100 * MS)) == 1


def test_after_a_silence_a_line_of_before_is_of_another_clock_perhaps(core):
    """It may have been set: told its own service, which began anew, and nobody else."""
    later = NOW + 3 * SECOND
    said(core, later)
    assert seen(core, later) == []
    assert core.edges[PATH].time is not None, "what it says now counts"
    core.estimate(PATH, PEER, line(NOW + SECOND))
    assert seen(core, later) == [], "the same line again"
    core.estimate(PATH, PEER, line(later + MS))
    assert len(seen(core, later + MS)) == 1


def test_what_it_said_before_a_silence_is_void(core):
    said(core, NOW + 3 * SECOND, time=False)
    assert core.edges[PATH].time is None
    assert core.edges[PATH].reference is None


def test_a_bound_that_is_said_no_more_is_not_used(core):
    """It left its mesh, or lost the time: its mesh time goes on, its bound does not."""
    held, keeper = Reference(TAG, 100, PEER, 1, NOW, 0, 0.0, 0.0), BoundKeeper(1e-17)
    for tenth in range(1, 10):
        said(core, NOW + tenth * SECOND // 10, time=False)
        now = NOW + tenth * SECOND // 10
        found = sights(seen(core, now), held, keeper, now)
        assert len(found) == (now - NOW <= TOGETHER_NS)


@pytest.mark.parametrize("lost", [None, Mesh, Reference, Time])
def test_a_time_runs_at_the_rates_that_were_said_with_it(core, lost):
    """A reference whose mesh rate is turned says the opposite of its own time's: the sum stays."""
    keeper, ours = BoundKeeper(0.0), Reference(TAG, 100, PEER, 1, NOW, 0, 0.0, -1e-4)
    worst = 0.0
    for step, turned in enumerate((1e-5, 3e-5, 2e-5), start=1):
        at = NOW + step * 100 * MS
        messages = (
            Mesh(TAG, at, at, 0.0, turned, PEER), Reference(TAG, 100, PEER, 1, at, 0, 0.0, -turned),
            Time(TAG, PEER, 1, at, at, 10.0, 0.0),
        )  # fmt: skip
        for message in messages:
            if step == 1 or not isinstance(message, lost or int):
                core.hear(PATH, PEER, at, message)
                core.hear(PATH, PEER, at, message)
            (found,) = sights(seen(core, at), ours, keeper, at)
            worst = max(worst, abs(found.theirs.slope))
            line_drift = core.edges[PATH].pair.drift(at)
            assert abs(found.theirs.slope) <= found.drift - line_drift + 1e-12
    assert worst == pytest.approx(2e-5)


def test_who_did_not_say_whom_it_follows_may_run_at_any_crystals_rate(core):
    now, keeper = NOW + 100 * MS, BoundKeeper(0.0)
    ours = Reference(TAG, 100, PEER, 1, NOW, 0, 0.0, 0.0)
    (same,) = sights(seen(core, now), ours, keeper, now)
    core.edges[PATH].reference = None
    (differs,) = sights(seen(core, now), ours, keeper, now)
    assert differs.bound_ns - same.bound_ns == pytest.approx(CRYSTALS * 100 * MS)
    assert differs.drift - same.drift == pytest.approx(CRYSTALS)
