"""A host whose probes lose packets at given rates, for tests of the loss test."""

import numpy as np

from fabricd.detect.loss import LossTest
from fabricd.detect.loss_rules import LossCounters

SEC = 10**9
STEP = SEC // 2
RAILS, PEERS = 4, "abcdefgi"
SLOW, TRAINS = 10, 300
"""Packets a second of a path, and of the one path of each rail that carries clock trains."""


class Feed:
    """A host with four rails and eight peers; ``rate(rail, peer, way)`` is the loss of a path."""

    def __init__(self, seed=0, peers=PEERS, rails=RAILS, base=1e-6, slow=SLOW):
        self.test = LossTest("h")
        self.rng = np.random.default_rng(seed)
        self.peers, self.rails, self.base, self.slow = peers, rails, base, slow
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
            rows = self.rows(rate, row)
            self.verdict = self.test.feed(rows, self.now, stalled_ns=stalled(self.now))
            for links, found in (
                (self.verdict.links, self.found), (self.verdict.paths, self.paths_found),
            ):  # fmt: skip
                for index in links:
                    found.setdefault(index, (self.now - began) / SEC)
            self.blames += self.verdict.blames
        return self.verdict

    def rows(self, rate, more):
        paths = [(r, p) for r in range(self.rails) for p in self.peers]
        chances = np.full((len(paths), 2), self.base)
        if rate:
            chances += [[rate(r, p, way) for way in ("rx", "tx")] for r, p in paths]
        trains = [self.peers.index(p) == r for r, p in paths]
        counts = np.where(trains, TRAINS, self.slow) // 2
        lost = self.rng.binomial(counts[:, None], np.minimum(1.0, chances)).tolist()
        out = []
        for index, ((r, p), count, (rx, tx)) in enumerate(
            zip(paths, counts.tolist(), lost, strict=True)
        ):
            t = self.totals.setdefault(index, [0, 0, 0, 0])
            for i, value in enumerate((count, count - rx, rx, tx)):
                t[i] += value
            out.append(LossCounters(index, r, r, p, r, *t, **more))
        return out


def at_link(rail, way, share):
    return lambda r, _p, w: share if (r, w) == (rail, way) else 0.0
