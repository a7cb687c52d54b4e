"""Gray loss: found with direction, per link or per path; what is no evidence raises nothing."""

import numpy as np
import pytest

from fabricd.detect.locate import Kind
from fabricd.detect.loss import FULL, LossCounters, LossTest, holes

SEC = 10**9
STEP = SEC // 2
RAILS, PEERS = 4, "abcdefgi"
SLOW, TRAINS = 10, 300
"""Packets a second of a path, and of the one path of each rail that carries clock trains."""


class Feed:
    """A host with four rails and eight peers; ``rate(rail, peer, way)`` is the loss of a path."""

    def __init__(self, seed=0, peers=PEERS, rails=RAILS, base=1e-6):
        self.test = LossTest("h")
        self.rng = np.random.default_rng(seed)
        self.peers, self.rails, self.base = peers, rails, base
        self.now = 0
        self.totals = {}
        self.found = {}
        self.paths_found = {}
        self.blames = []
        self.verdict = None

    def run(self, seconds, rate=None, *, stalled=lambda _now: 0, **row):
        """Returns the last verdict; notes when each link and path was first called worse."""
        began = self.now
        for _ in range(round(seconds * SEC / STEP)):
            self.now += STEP
            rows = [self.row(r, p, rate, row) for r in range(self.rails) for p in self.peers]
            self.verdict = self.test.feed(rows, self.now, stalled_ns=stalled(self.now))
            for links, found in (
                (self.verdict.links, self.found), (self.verdict.paths, self.paths_found),
            ):  # fmt: skip
                for index in links:
                    found.setdefault(index, (self.now - began) / SEC)
            self.blames += self.verdict.blames
        return self.verdict

    def row(self, rail, peer, rate, more):
        index = rail * len(self.peers) + self.peers.index(peer)
        t = self.totals.setdefault(index, [0, 0, 0, 0])
        pps = TRAINS if self.peers.index(peer) == rail else SLOW
        count = pps // 2
        chance = [self.base + (rate(rail, peer, way) if rate else 0.0) for way in ("rx", "tx")]
        lost = [int(self.rng.binomial(count, min(1.0, p))) for p in chance]
        for i, value in enumerate((count, count - lost[0], lost[0], lost[1])):
            t[i] += value
        return LossCounters(index, rail, rail, peer, rail, *t, **more)


def at_link(rail, way, share):
    return lambda r, _p, w: share if (r, w) == (rail, way) else 0.0


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


@pytest.mark.nightly
def test_median_times_are_those_that_are_asked():
    for share, asked in ((0.01, 3), (0.001, 30)):
        took = []
        for seed in range(20):
            feed = Feed(seed)
            feed.run(2)
            feed.run(60, at_link(2, "rx", share))
            took.append(feed.found.get(2, 60))
        assert np.median(took) <= asked


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


def test_a_peer_that_loses_on_all_rails_is_busy_and_nobody_s_fault():
    feed = Feed(2)
    feed.run(60, lambda _r, p, w: 0.1 if (p, w) == ("c", "tx") else 0.0)
    assert (feed.found, feed.paths_found) == ({}, {})


def test_one_peer_alone_never_blames_a_link():
    feed = Feed(3, peers="a", rails=2)
    feed.run(30, at_link(0, "rx", 0.2))
    assert feed.found == {}


def test_two_peers_are_enough_without_cross_rail_paths():
    feed = Feed(3, peers="ab", rails=2)
    feed.run(10, at_link(0, "rx", 0.2))
    assert set(feed.found) == {0}


def test_a_single_burst_is_no_verdict():
    feed = Feed(4)
    feed.run(10)
    feed.run(0.5, at_link(1, "rx", 0.9))
    feed.run(30)
    assert feed.found == {}


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


def test_counters_that_went_back_and_a_reset_are_left_out():
    feed = Feed(9)
    feed.run(10)
    feed.totals.clear()
    feed.run(10)
    feed.test.reset()
    feed.totals.clear()
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
