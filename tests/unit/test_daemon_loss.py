"""Loss over a window: two peers, both directions, hysteresis, outages do not count."""

from fabricd.detect.loss import LossCounters, LossWindow

SEC = 10**9


class Feed:
    def __init__(self):
        self.window = LossWindow()
        self.now = 0
        self.totals = {}

    def run(self, seconds, rx=0.0, tx=0.0, peers="abc", outage=False, lossy=None):
        """100 packets a second and path."""
        for _ in range(seconds):
            self.now += SEC
            rows = []
            for index, peer in enumerate(peers):
                share = 1.0 if lossy is None or peer in lossy else 0.0
                t = self.totals.setdefault(peer, [0, 0, 0, 0])
                t[0] += 100
                t[1] += 100 - round(100 * rx * share)
                t[2] += round(100 * rx * share)
                t[3] += round(100 * tx * share)
                rows.append(LossCounters(index, 0, peer, *t, outage=outage))
            result = self.window.feed(rows, self.now)
        return result


def test_no_loss_no_blame():
    assert Feed().run(30) == {}


def test_loss_from_two_peers_is_the_link():
    feed = Feed()
    feed.run(3)
    assert "probes from a, b lost" in feed.run(12, rx=0.10, lossy="ab")[0]
    assert "probes to" in Feed().run(12, tx=0.2)[0]


def test_loss_of_one_peer_is_not():
    assert Feed().run(30, rx=0.5, lossy="b") == {}


def test_little_loss_is_not():
    assert Feed().run(30, rx=0.04) == {}


def test_hysteresis():
    feed = Feed()
    assert feed.run(12, rx=0.06)
    assert feed.run(30, rx=0.03), "between leave and enter it stays"
    assert feed.run(12, rx=0.0) == {}
    assert feed.run(30, rx=0.03) == {}, "and does not come back there"


def test_losses_of_an_outage_do_not_count():
    feed = Feed()
    feed.run(15)
    feed.run(3, rx=1.0, outage=True)
    assert feed.run(1, rx=0.9) == {}, "found late"
    assert feed.run(20) == {}


def test_counters_that_went_back_are_left_out():
    feed = Feed()
    feed.run(15)
    feed.totals.clear()
    assert feed.run(5) == {}
