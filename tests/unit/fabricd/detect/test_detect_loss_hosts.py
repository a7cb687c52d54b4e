"""A host that loses on all its rails is named, and what is a part of it is not named beside it."""

import pytest
from loss_feed import SEC, Feed

from fabricd.detect.locate import Blame, Kind
from fabricd.detect.loss_rules import is_part_of

pytestmark = pytest.mark.virtual_time


def test_a_peer_that_loses_on_all_rails_is_busy_and_nobody_s_fault():
    feed = Feed(2)
    feed.run(60, lambda _r, p, w: 0.1 if (p, w) == ("c", "tx") else 0.0)
    assert (feed.found, feed.paths_found) == ({}, {})


def test_a_host_that_loses_on_all_rails_is_named_once_and_while_it_does():
    for rate, host in (
        (lambda _r, p, w: 0.1 if (p, w) == ("c", "tx") else 0.0, "c"),
        (lambda _r, _p, _w: 0.05, "h"),
    ):
        feed = Feed(2)
        feed.run(20)
        verdict = feed.run(30, rate)
        assert feed.found == {}
        assert {(b.kind, b.element) for b in verdict.elsewhere} == {(Kind.HOST, host)}
        known = [(b.kind, b.element) for b in feed.blames if b.kind is not Kind.UNKNOWN]
        assert known == [(Kind.HOST, host)]
        assert feed.run(60).elsewhere == ()


@pytest.mark.parametrize(
    ("kind", "element", "part"),
    [
        (Kind.HOST, "a-1", True),
        (Kind.HOST, "a-11", False),
        (Kind.LINK, "a-1/3", True),
        (Kind.LINK, "b-a-1/3", False),
        (Kind.LINK, "a-11/3", False),
        (Kind.PATH, "b/2-a-1/3", True),
        (Kind.PATH, "a-1/3-b/2", True),
        (Kind.PATH, "b/2-c/3", False),
        (Kind.LEAF, "a-1/3", False),
    ],
)
def test_what_is_a_part_of_a_host(kind, element, part):
    assert is_part_of("a-1", Blame(kind, element)) is part


def test_ports_of_a_host_that_loses_are_not_named_beside_it():
    def rate(rail, peer, _way):
        return 0.1 if peer == "c" else 0.3 * ((rail, peer) == (1, "b"))

    feed = Feed(2)
    feed.run(20)
    assert feed.run(10, rate).paths
    # As an asking answered that came before the host was known.
    feed.test._elsewhere = [Blame(Kind.LINK, "c/1"), Blame(Kind.LINK, "b/1")]
    feed.test._place_at = feed.now + 60 * SEC
    named = {(b.kind, b.element) for b in feed.run(1, rate).elsewhere}
    assert named == {(Kind.HOST, "c"), (Kind.LINK, "b/1")}


def test_a_host_that_lost_what_waited_while_it_was_stopped_is_not_named():
    feed = Feed(2)
    feed.run(20)
    feed.run(2, lambda _r, p, _w: 0.4 if p == "c" else 0.0)
    assert any(link.place and link.place.kind is Kind.HOST for link in feed.test._links.values())
    assert feed.run(30).elsewhere == ()
    assert [b for b in feed.blames if b.kind is not Kind.UNKNOWN] == []


def test_what_a_host_lost_before_does_not_name_it_for_what_another_loses_now():
    """c had a burst, and before that is forgotten this host itself loses."""
    feed = Feed(2)
    feed.run(20)
    feed.run(2, lambda _r, p, _w: 0.4 if p == "c" else 0.0)
    feed.run(20, lambda _r, _p, _w: 0.03)
    known = {(b.kind, b.element) for b in feed.blames if b.kind is Kind.HOST}
    assert known == {(Kind.HOST, "h")}


def test_a_host_of_which_one_rail_is_well_is_not_named():
    feed = Feed(2)
    feed.run(20)
    verdict = feed.run(30, lambda r, _p, w: 0.05 if (r, w) == (1, "rx") else 0.0)
    assert set(verdict.links) == {1}
    assert Kind.HOST not in {b.kind for b in (*feed.blames, *verdict.elsewhere)}


def test_each_place_that_explains_losses_is_named_and_one_unknown_at_most():
    def rate(rail, peer, _way):
        return 0.3 if (rail, peer) in ((1, "b"), (2, "d")) else 0.0

    feed = Feed(2)
    feed.run(20)
    first, second = (Blame(Kind.LINK, f"{at}", 0.999, pairs=8) for at in ("b/1", "d/2"))
    doubtful = Blame(Kind.LINK, "e/3", 0.999, pairs=1)
    feed.test._explain = lambda *_: [first, second, doubtful]
    named = [(b.kind, b.element) for b in feed.run(20, rate).elsewhere]
    assert named == [(Kind.LINK, "b/1"), (Kind.LINK, "d/2")]
    told = [(b.kind, b.element) for b in feed.blames]
    assert told == named, "each once"
    feed.test._explain = lambda *_: [doubtful, second]
    later = [(b.kind, b.element) for b in feed.run(60, rate).elsewhere]
    assert later == [(Kind.UNKNOWN, ""), (Kind.LINK, "d/2")]
