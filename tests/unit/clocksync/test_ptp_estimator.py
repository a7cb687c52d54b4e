"""One master's exchanges, made up: steps over a silence, stamps that are wrong, a way that ends."""

import itertools
import random

import pytest

from clocksync.ptp.estimator import MasterEstimator

SECOND = 10**9
PERIOD = SECOND // 8
FIT = SECOND // 2
LEAST_NS, QUEUE_NS = 4000, 1000
"""Of a delay: the wire's, and the mean of what comes on top."""


class Exchanges:
    """Given to an estimator in the order in which they happen, with its looks in between."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.estimator = MasterEstimator()
        self.events = []
        self.offset = {}

    def between(self, begin_s, end_s, offset_ns, later_s=(0.0, 0.0)):
        """A master that is ``offset_ns`` ahead; its Syncs and answers begin so much later."""
        for way, later in zip(("sync", "delay"), later_s, strict=True):
            at = round((begin_s + later) * SECOND) + self.rng.randrange(PERIOD)
            while at < end_s * SECOND:
                self.events.append((at, way, round(offset_ns)))
                at += PERIOD

    def run(self):
        """Returns all lines that were given: when, and how far off from where the master is."""
        last = max(self.events)[0]
        looks = [(at, "look", 0) for at in range(self.rng.randrange(FIT), last + FIT, FIT)]
        lines = []
        for at, what, offset in sorted(self.events + looks):
            delay = LEAST_NS + round(self.rng.expovariate(1 / QUEUE_NS))
            if what == "sync":
                self.estimator.sync(at - delay + offset, at)
            elif what == "delay":
                self.estimator.delay(at, at + delay + offset)
            elif (found := self.estimator.estimate(at)) is not None:
                lines.append((at, found.base_ns + found.ahead(at), found.bound_ns(at)))
        return lines


@pytest.mark.parametrize("seed", range(20))
def test_a_step_over_a_silence_is_one_however_little_of_it_is_seen_at_first(seed):
    """A master that was started anew answers both ways at once, or one a while after the other."""
    said = Exchanges(seed)
    rng = random.Random(seed)
    step = rng.choice([-0.5, -0.002, 0.002, 0.5]) * SECOND
    gone, back = rng.uniform(5, 40), rng.uniform(0, 16)
    later = [rng.random() * rng.choice([0.1, 2.0]) for _ in range(2)]
    said.between(0, gone, 0)
    said.between(gone + back, gone + back + 12, step, later)
    lines = said.run()
    assert said.estimator.steps == 1
    assert lines[-1][1] == pytest.approx(step, abs=2000)
    for at, ahead, bound in lines:
        # The old time or the new one, and no bound that reaches from one to the other.
        assert min(abs(ahead), abs(ahead - step)) <= bound < 100_000, at


@pytest.mark.parametrize("off_ns", [10**6, -(10**6)])
@pytest.mark.parametrize("way", ["sync", "delay"])
def test_stamps_that_are_wrong_are_no_step_and_end_no_line(way, off_ns):
    said = Exchanges(1)
    said.between(0, 40, 0)
    bad = {round(at * SECOND) for at in (11.01, 20.02, 20.1, 30.03)}
    said.events += [(at, way, off_ns) for at in bad]
    lines = said.run()
    assert said.estimator.steps == 0
    assert all(abs(ahead) <= bound < 20_000 for _, ahead, bound in lines[4:])
    seen = [at for at, _, _ in lines]
    assert max(b - a for a, b in itertools.pairwise(seen)) <= FIT
    assert said.estimator.last.seen_ns > 39 * SECOND, "and it goes on"


def test_where_one_direction_ends_the_other_does_not_pile_up():
    """A master that denies Delay_Resp, or a filter: its Syncs go on."""
    estimator = MasterEstimator()
    for eighth in range(8 * 600):
        now = eighth * SECOND // 8
        estimator.sync(now + 10**6, now + 20_000)
        if eighth < 8 * 40:
            estimator.delay(now, now + 20_000 + 10**6)
        if eighth % 4 == 0:
            estimator.estimate(now + 30_000)
    assert estimator.last is not None, "held over, with a bound that grows"
    assert len(estimator._down) < 8 * 60
    assert not estimator._up
