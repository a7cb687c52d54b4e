"""Gray loss: found with direction, per link or per path; what is no evidence raises nothing."""

from copy import deepcopy

import pytest
from loss_feed import PEERS, RAILS, SEC, STEP, Feed, at_link

from fabricd.detect.locate import Kind, Way
from fabricd.detect.loss import LossTest
from fabricd.detect.loss_rules import FULL, LossCounters, holes, shared_ratio
from fabricd.probes.records import Direction

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("way", ["rx", "tx"])
@pytest.mark.parametrize(("share", "within"), [(0.2, 5), (0.01, 20), (0.001, 150)])
def test_loss_of_a_link_is_found_with_its_direction(way, share, within):
    for seed in range(8):
        feed = Feed(seed)
        feed.run(2)
        feed.run(within, at_link(1, way, share))
        assert set(feed.found) == {1}, seed
        assert ("from" if way == "rx" else "to") in feed.verdict.links[1]
        assert {(b.kind, b.element) for b in feed.blames if b.kind is not Kind.UNKNOWN} <= {
            (Kind.LINK, "h/1")
        }


@pytest.mark.parametrize("base", [1e-6, 1e-5])
def test_base_loss_raises_nothing(base):
    feed = Feed(7, base=base)
    feed.run(900)
    assert (feed.found, feed.paths_found) == ({}, {})


def test_loss_of_one_peer_s_path_is_that_path():
    feed = Feed(1)
    feed.run(30, lambda r, p, _w: 0.2 if (r, p) == (1, "b") else 0.0)
    assert feed.found == {}
    assert set(feed.paths_found) == {1 * len(PEERS) + 1}
    assert "b lost on this path" in feed.verdict.paths[9]


def test_two_links_that_lose_are_two_places():
    """The one that loses more is every asking's first answer."""
    feed = Feed(2)
    feed.run(20)
    rates = {(1, "rx"): 0.02, (2, "rx"): 0.2}
    verdict = feed.run(30, lambda r, _p, w: rates.get((r, w), 0.0))
    places = {index: (blame.kind, blame.element) for index, blame in verdict.at.items()}
    assert places == {1: (Kind.LINK, "h/1"), 2: (Kind.LINK, "h/2")}


def test_one_peer_alone_never_blames_a_link():
    feed = Feed(3, peers="a", rails=2)
    feed.run(30, at_link(0, "rx", 0.2))
    assert feed.found == {}


def test_two_peers_are_enough_without_cross_rail_paths():
    feed = Feed(3, peers="ab", rails=2)
    feed.run(10, at_link(0, "rx", 0.2))
    assert set(feed.found) == {0}


@pytest.mark.parametrize("way", ["rx", "tx"])
def test_a_host_with_one_rail_names_it(way):
    """Whether it is the link or the host itself, nothing there tells."""
    feed = Feed(5, peers="abcd", rails=1)
    feed.run(10)
    feed.run(10, at_link(0, way, 0.05))
    assert set(feed.found) == {0}


def test_one_peer_s_loss_is_no_fault_of_the_only_rail():
    feed = Feed(6, peers="abcd", rails=1)
    feed.run(10)
    feed.run(30, lambda _r, p, _w: 0.05 if p == "b" else 0.0)
    assert feed.found == {}


def test_blame_is_withdrawn_when_more_losses_tell_of_another():
    """Two peers lose a few packets by chance, and one of them goes on."""
    feed = Feed(9)
    feed.run(10)
    both = feed.run(3, lambda r, p, w: 0.02 if (r, w) == (1, "rx") else 0.0)
    assert set(both.links) == {1}
    feed.run(60, lambda r, p, w: 0.05 if (r, p, w) == (1, "b", "rx") else 0.0)
    assert feed.verdict.links == {}
    assert set(feed.verdict.paths) == {len(PEERS) + 1}


def test_a_single_burst_is_no_verdict():
    feed = Feed(4)
    feed.run(10)
    feed.run(0.5, at_link(1, "rx", 0.9))
    feed.run(30)
    assert feed.found == {}


@pytest.fixture(scope="module")
def an_hour_of_little_loss():
    feed = Feed(12, base=2e-5)
    feed.test.configure(["a", "b", "c", "d"], range(32))
    feed.run(3600)
    return feed


def test_a_link_that_always_lost_a_little_is_judged_by_that(an_hour_of_little_loss):
    feed = deepcopy(an_hour_of_little_loss)
    before = {key: link.baseline.rate for key, link in feed.test._links.items()}
    assert all(rate > 7e-6 for rate in before.values())
    feed.run(30, at_link(1, "rx", 0.01))
    assert 1 in feed.found
    link = feed.test._links[1, Direction.RX]
    assert link.baseline.rate == before[1, Direction.RX], "what led to a verdict is nothing usual"


def test_full_queues_are_nothing_to_get_used_to():
    feed = Feed(13)
    feed.run(600, lambda *_: 0.003, queue_ns=2_000_000)
    assert {link.baseline.rate for link in feed.test._links.values()} == {3e-6}


def test_losses_of_our_own_gap_and_of_outages_are_no_evidence():
    feed = Feed(5)
    feed.run(10)
    for _ in range(5):
        feed.run(0.5, lambda *_: 0.5, stalled=lambda _now: SEC)
        feed.run(1.5, lambda *_: 0.5)
        feed.run(3)
    assert feed.found == {}
    for _ in range(5):
        feed.run(1, at_link(1, "rx", 1.0), outage=True)
        feed.run(1, at_link(1, "rx", 0.9))
        feed.run(3)
    assert feed.found == {}


def test_short_gaps_of_our_own_hide_nothing():
    """The prober's sockets hold what comes meanwhile; a busy host has such gaps all the time."""
    feed = Feed(14)
    feed.run(10)
    feed.run(5, at_link(1, "rx", 0.05), stalled=lambda _now: 300_000_000)
    assert set(feed.found) == {1}


@pytest.mark.parametrize(
    ("seen", "shared"),
    [
        ([(3, 450), (2, 450), (0, 300)], True),
        ([(4, 450), (1, 450), (0, 300)], True),
        ([(3, 450), (1, 30)], True),
        ([(6, 430), (1, 450), (0, 300)], False),  # one peer at 1 %, another once by chance
        ([(9, 2700), (1, 2700), (0, 1800)], False),
        ([(5, 450), (0, 450)], False),
        ([], False),
    ],
)
def test_losses_are_shared_by_the_peers_or_of_one_and_a_chance(seen, shared):
    assert (shared_ratio(seen, 1e-5) >= LossTest().rules.shared) is shared


def test_a_peer_s_loss_and_one_chance_loss_elsewhere_are_not_the_link_s():
    feed = Feed(15, base=0.0)
    feed.run(2)
    sick = lambda r, p, w: 0.01 if (r, p, w) == (1, "b", "rx") else 0.0  # noqa: E731
    feed.run(20, sick)
    feed.totals[1 * len(PEERS) + PEERS.index("d")][2] += 1
    feed.run(5, sick)
    assert feed.found == {}


def test_full_queues_explain_some_loss_and_not_much():
    feed = Feed(6)
    feed.run(60, at_link(1, "rx", 0.01), queue_ns=2_000_000)
    assert feed.found == {}
    feed.run(20, at_link(1, "rx", 0.2), queue_ns=2_000_000)
    assert set(feed.found) == {1}


def test_verdict_ends_when_the_loss_does():
    feed = Feed(8)
    feed.run(10, at_link(1, "rx", 0.05))
    assert feed.verdict.links
    feed.run(120)
    assert not feed.verdict.links


@pytest.mark.parametrize("peers", ["abc", PEERS], ids=["3 peers", "8 peers"])
@pytest.mark.parametrize("way", ["rx", "tx"])
def test_full_weight_is_back_soon_after_three_percent(peers, way):
    """The link and its paths, also at the fourth time within an hour."""
    for seed in range(4):
        feed = Feed(100 + seed, peers)
        for again in range(4):
            feed.run(20 + 10 * again, at_link(1, way, 0.03))
            assert set(feed.verdict.links) == {1}
            feed.run(15)
            assert (feed.verdict.links, feed.verdict.paths) == ({}, {}), (seed, again)


def test_a_path_of_32_packets_a_second_is_well_soon_after_three_percent():
    """The fault is at the peer's port: here a path alone, which has few packets."""
    late = 0
    for seed in range(20):
        feed = Feed(200 + seed, "abc", slow=32)
        feed.run(40, lambda r, p, w: 0.03 if (r, p, w) == (3, "a", "tx") else 0.0)
        assert set(feed.paths_found) == {3 * 3}
        feed.run(15)
        late += bool(feed.verdict.paths)
    assert late <= 1


def test_who_was_sick_not_long_ago_has_to_be_well_for_longer():
    feed = Feed(8)
    took = []
    for _ in range(2):
        feed.run(60, at_link(1, "rx", 0.001))
        assert feed.verdict.links
        began = feed.now
        while feed.run(1).links:
            pass
        took.append(feed.now - began)
    assert took[1] > 1.8 * took[0]
    assert took[1] < 300 * SEC


def test_what_is_usual_of_a_link_outlives_a_reload_but_not_the_link(an_hour_of_little_loss):
    feed = deepcopy(an_hour_of_little_loss)
    known = feed.test._links[1, Direction.RX].baseline
    assert known.rate > 3e-6
    feed.test.rebase()
    feed.test.configure(["a", "b", "x"], [])
    assert feed.test._links[1, Direction.RX].baseline is known
    assert {index for index, _ in feed.test._links} == {0, 1}


LINKS = ["a", "b", "c", "d"]


def keys(links=LINKS):
    return [(link, peer) for link in links for peer in PEERS]


def sick(way="rx"):
    """Link b loses much, and that is known."""
    feed = Feed(8)
    feed.test.configure(LINKS, keys())
    feed.run(10, at_link(1, way, 0.05))
    assert list(feed.verdict.links) == [1]
    return feed


def test_what_is_known_of_a_lossy_link_outlives_a_reload_and_a_prober():
    feed = sick()
    feed.test.configure(LINKS, keys())
    assert list(feed.run(0.5, at_link(1, "rx", 0.05)).links) == [1]
    feed.test.rebase()
    feed.totals.clear()
    assert list(feed.run(0.5, at_link(1, "rx", 0.05)).links) == [1]
    assert list(feed.run(20, at_link(1, "rx", 0.05)).links) == [1]
    assert not feed.run(120).links, "and it ends as ever"


def test_links_and_paths_that_stay_keep_their_evidence_at_another_index():
    feed = sick()
    before = feed.test._links[1, Direction.RX]
    feed.test.configure(["x", "d", "b"], keys(["x", "d", "b"])[:-1])
    assert feed.test._links == {
        key: feed.test._links[key] for key in feed.test._links if key[0] in (1, 2)
    }
    assert feed.test._links[2, Direction.RX] is before
    assert set(before.before) == set(range(8, 23)), "of the paths that stay, where they are now"
    feed.rails, feed.totals = 3, {}
    rows = [row for row in feed.rows(None, {}) if row.path < 23]
    assert list(feed.test.feed(rows, feed.now + STEP).links) == [2]


def test_paths_that_changed_begin_anew_and_a_link_with_none_left_too():
    feed = sick()
    usual = feed.test._links[1, Direction.RX].baseline
    others = [(link, f"new {peer}") if link == "b" else (link, peer) for link, peer in keys()]
    feed.test.configure(LINKS, others)
    assert set(feed.test._paths) == set(range(32)) - set(range(8, 16))
    link = feed.test._links[1, Direction.RX]
    assert (link.cusum.sick, link.blamed, link.baseline) == (False, "", usual)
    assert not feed.run(1).links


def test_a_peer_s_lasting_loss_is_asked_about_enough_some_time():
    feed = Feed(4, peers="ab")
    feed.run(60, lambda _r, p, _w: 0.05 if p == "a" else 0.0)
    assert any(link.cusum.sick for link in feed.test._links.values())
    assert (feed.found, feed.test.suspects) == ({}, False)


def test_counters_that_went_back_and_another_prober_s_are_left_out():
    feed = Feed(9)
    feed.run(10)
    feed.totals.clear()
    feed.run(10)
    feed.test.rebase()
    feed.totals = {index: [0, 0, 10**6, 10**6] for index in feed.totals}
    feed.run(10)
    assert feed.found == {}


def test_spine_is_named_when_many_paths_lose():
    feed = Feed(10, peers="abcdefgi")
    topology = {("h", r): f"p0r{r}" for r in range(RAILS)}
    topology |= {(p, r): f"p{int(p in 'efgi')}r{r}" for p in PEERS for r in range(RAILS)}
    feed.test.topology = type(feed.test.topology)(topology)
    feed.run(40, lambda r, p, w: 0.2 if p in "efgi" and (r + ord(p) + (w == "rx")) % 4 == 0 else 0)
    assert feed.blames
    assert feed.blames[0].kind is Kind.SPINE


@pytest.mark.parametrize(
    ("bitmap", "absent"),
    [
        (FULL, 0),
        (0b1, 0),  # the first that was heard
        (0b1111, 0),
        (FULL & ~(1 << 5), 1),
        (FULL & ~0b110, 0),  # a train may be under way
        (0b1_0000_1111, 4),
        (FULL & ~(1 << 9), 0),  # counted as lost already
        (0, 0),
    ],
)
def test_holes_are_packets_absent_below_one_that_came(bitmap, absent):
    assert holes(bitmap) == absent


def test_where_packets_are_far_apart_one_newer_packet_tells():
    gone = FULL & ~0b10

    def lost(**more):
        test = LossTest("h")
        row = {"rx_lost": 0, "tx_lost": 0, "path": 0, "link": 0, "rail": 0, "peer": "a"}
        for number, bitmap in enumerate((FULL, gone)):
            count = 100 * number
            test.feed(
                [LossCounters(**row, peer_rail=0, sent=count, received=count, rx_bitmap=bitmap,
                              **more)],
                number * STEP,
            )  # fmt: skip
        return test.suspects

    assert holes(gone, 1) == 1
    assert lost(interval_ns=20_000_000)
    assert not lost(interval_ns=20_000_000, trains=True), "a train may be under way"
    assert not lost(interval_ns=1_000_000)


def test_suspicion_ends_with_the_verdict_or_with_the_evidence():
    feed = Feed(11)
    feed.run(2)
    assert not feed.test.suspects
    seen = []
    for _ in range(12):
        feed.run(0.5, at_link(1, "rx", 0.05))
        seen.append((feed.test.suspects, bool(feed.verdict.links)))
    assert (True, False) in seen
    assert seen[-1] == (False, True)


def test_what_is_usual_is_kept_for_the_next_daemon(an_hour_of_little_loss):
    feed = deepcopy(an_hour_of_little_loss)
    kept = feed.test.save()
    assert set(kept) == {"a", "b", "c", "d"}
    other = LossTest("h")
    other.configure(["d", "new", "a"], [])
    assert other.restore(kept) == []
    again = other.save()
    assert again["a"] == kept["a"]
    assert again["d"] == kept["d"]
    assert again.get("new") is None


@pytest.mark.parametrize(
    "document",
    [None, 3, {"a": None}, {"a": {"rx": [1, 2]}}, {"a": {"rx": [3, 2], "tx": [0, 1]}},
     {"a": {"rx": [10**400, 10**401]}}, {"a": {"rx": ["x", 2], "tx": [0, float("inf")]}},
     {"a": {"rx": [-1, 2], "tx": [1, 2, 3]}}],
)  # fmt: skip
def test_a_document_that_is_wrong_is_refused_by_parts(document):
    test = LossTest("h")
    test.configure(["a"], [])
    assert test.restore(document)
    kept = [counts for ways in test.save().values() for counts in ways.values()]
    assert all(0 <= events <= exposure for events, exposure in kept)


class Filled(Feed):
    """A job fills the rails now and then: queues that drop, and are seen in most readings."""

    drops, seen = 0.003, 1.0

    def rows(self, rate, more):
        queue = self.rng.random(self.rails) < 0.5
        chance = self.drops * queue
        rows = super().rows(lambda r, p, w: (rate(r, p, w) if rate else 0) + chance[r], more)
        told = self.rng.random(len(rows)) < self.seen
        return [
            row._replace(queue_ns=2_000_000 * int(queue[row.link] and told[row.path]))
            for row in rows
        ]


@pytest.mark.parametrize(("drops", "seen"), [(0.003, 1.0), (0.01, 1.0), (0.003, 0.8)])
def test_what_full_queues_drop_beside_a_peer_s_fault_names_no_wrong_element(drops, seen):
    """3 % lost on the way in at rail 2 of peer a, which alone can know it."""
    found = 0
    for seed in range(12):
        feed = Filled(1000 + seed, "abc", slow=33)
        feed.drops, feed.seen = drops, seen
        feed.run(20)
        feed.run(20, lambda r, p, w: 0.03 if (r, p, w) == (2, "a", "tx") else 0.0)
        assert feed.found == {}
        assert set(feed.paths_found) <= {2 * 3}
        named = {(b.kind, b.element) for b in feed.blames if b.kind is not Kind.UNKNOWN}
        assert named <= {(Kind.LINK, "a/2")}
        found += bool(feed.paths_found)
    assert found >= 9


class CrossRail(Feed):
    """Rail 1 probes rail 2 of peer a, too."""

    def rows(self, rate, more):
        rows = super().rows(rate, more)
        return [r._replace(peer_rail=2) if (r.rail, r.peer) == (1, "a") else r for r in rows]


def test_one_path_alone_has_no_place_and_two_have():
    """From one path nobody can tell the peer's port from the way there."""
    feed = Feed(30, "abc", slow=33)
    feed.run(30, lambda r, p, w: 0.03 if (r, p, w) == (2, "a", "tx") else 0.0)
    (blame,) = feed.blames
    assert (blame.kind, blame.flows) == (Kind.UNKNOWN, 1)
    assert (Kind.LINK, "a/2") in [c[:2] for c in blame.candidates]
    feed = CrossRail(31, "abc", slow=33)
    feed.run(60, lambda r, p, w: 0.03 if (p, w) == ("a", "tx") and r in (1, 2) else 0.0)
    last = feed.blames[-1]
    assert (last.kind, last.element, last.way, last.flows) == (Kind.LINK, "a/2", Way.IN, 2)
