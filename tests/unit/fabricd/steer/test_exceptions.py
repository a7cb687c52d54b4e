"""Exceptions of paths that are too many for probes: few changes, and the reason for each."""

import pytest
from engine_host import MS, SEC, Host
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fabricd.steer.exceptions import CALM_NS, ExceptionLimiter
from fabricd.steer.modes import Mode
from fabricd.steer.page import SteerPage
from fabricd.steer.publisher import Publisher
from telemetry.events import EventKind, LinkState

WINDOW, MOST = 600 * SEC, 3
KEY = "rail1", "b"

pytestmark = pytest.mark.virtual_time


def limiter(most=MOST):
    made = ExceptionLimiter()
    made.configure(WINDOW, most)
    return made


def on_page(made, wanted, refused, now):
    made.update({KEY} if wanted else set(), {KEY} if refused else set(), now)
    return wanted and KEY not in made.refused


steps = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 200)), max_size=60)


@given(steps)
def test_while_one_outage_lasts_it_changes_three_times_at_most(steps):
    made, now, was, changed = limiter(), 0, False, []
    for _, refused, seconds in steps:
        now += seconds * SEC
        is_on = on_page(made, True, refused, now)
        if is_on != was:
            changed.append(now)
        was = is_on
    for at in changed:
        assert len([when for when in changed if at - WINDOW < when <= at]) <= MOST


@given(steps)
def test_without_a_limit_it_follows_after_a_calm_time(steps):
    made, now, calm = limiter(most=0), 0, 0
    for number, (_, refused, seconds) in enumerate(steps):
        now += seconds * SEC
        is_on = on_page(made, True, refused, now)
        if refused:
            assert not is_on
            calm = None
        else:
            calm = now if calm is None else calm
            assert is_on or now - calm < CALM_NS or number == 0


def test_it_asks_to_be_called_when_the_calm_time_is_over():
    made = limiter(most=0)
    assert made.update({KEY}, {KEY}, SEC) is None
    assert made.update({KEY}, set(), 5 * SEC) == 5 * SEC + CALM_NS
    assert made.refused == {KEY}
    assert made.update({KEY}, set(), 5 * SEC + CALM_NS) is None
    assert made.refused == frozenset()


def publisher_of(tmp_path):
    page = SteerPage(tmp_path / "steer", incarnation=1)
    page.open(1)
    return page, Publisher(page)


def rows(publisher, host):
    modes = {link.netdev: Mode.STEER for link in host.engine.links}
    events = publisher.publish(host.engine, modes, host.now)
    return [
        (e.link, e.peer, e.data["weight"], e.to_state, e.reason)
        for e in events
        if e.kind is EventKind.STEER and e.peer
    ]


def test_the_row_of_a_path_that_carries_in_spite_of_probes_says_why(tmp_path):
    """It said "not heard on this path", the reason for the opposite."""
    host = Host(rails=3)
    page, publisher = publisher_of(tmp_path)
    host.silence((1, "b"))
    host.run(2 * SEC)
    assert rows(publisher, host) == [("rail1", "b", 0, LinkState.DOWN, "b not heard on this path")]
    host.silence(0)
    host.run(SEC)
    assert rows(publisher, host) == [
        ("rail1", "b", 1000, LinkState.DOWN,
         "kept in spite of probes: [steer] max_probe_share = 0.5"),
    ]  # fmt: skip
    page.close()


def test_a_path_that_finds_no_room_on_the_page_has_no_row(tmp_path, monkeypatch):
    """The timeline said that it was steered, and the page did not have it."""
    host = Host(rails=3)
    page, publisher = publisher_of(tmp_path)
    monkeypatch.setattr("fabricd.steer.page.MAX_PATHS", 0)
    host.silence((1, "b"))
    host.run(2 * SEC)
    with capture_logs() as logs:
        assert rows(publisher, host) == rows(publisher, host) == []
    assert [entry.get("more") for entry in logs] == [1], "said once"
    monkeypatch.setattr("fabricd.steer.page.MAX_PATHS", 960)
    assert [row[:3] for row in rows(publisher, host)] == [("rail1", "b", 0)]
    page.close()


def test_the_row_of_the_last_path_to_a_peer_says_so(tmp_path):
    host = Host(rails=2)
    page, publisher = publisher_of(tmp_path)
    host.silence((1, "b"))
    host.run(2 * SEC)
    assert [row[2] for row in rows(publisher, host)] == [0]
    host.engine.links[0].carrier = False
    host.run(10 * MS)
    assert [row[2:] for row in rows(publisher, host)] == [
        (1000, LinkState.DOWN, "kept: no other link would reach b")
    ]
    page.close()
