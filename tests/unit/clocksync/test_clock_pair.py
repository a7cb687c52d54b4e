"""One path's estimate of how far two clocks are apart, over time."""

from dataclasses import replace

import numpy as np
import pytest

from clocksync.pair.estimator import PairEstimator
from clocksync.pair.model import SECOND, Rules
from clocksync.pair.trains import Packets

pytestmark = pytest.mark.virtual_time

DELAY_NS, JITTER_NS = 30_000, 40
SLOPE = 21e-6
MS = 10**6


class Path:
    """Two hosts and what lies between them; the truth is known."""

    def __init__(
        self, seed=0, *, trains_hz=100, load=(0.0, 0.0), delay=(DELAY_NS, DELAY_NS),
        jitter=JITTER_NS,
    ):  # fmt: skip
        self.rng = np.random.default_rng(seed)
        self.jitter = jitter
        self.warm = (0.0, 0.0)
        """Share of the packets that take 70 ns less."""
        self.shorter = (0.0, 0.0)
        """All take so much less, ns."""
        self.slewed, self.slewed_at = 0.0, None
        """By how much faster the peer's clock goes from some moment on."""
        self.trains_hz, self.load, self.delay = trains_hz, load, delay
        self.standing = (0.0, 0.0)
        """Queues that never end, ns: on average a half more, at least half of it."""
        self.waves = ((0.0, 1.0), (0.0, 1.0))
        """Queues that fill and drain: most that they hold, ns, and how long that takes, s."""
        self.stepped_ns = 0
        self.set_ns, self.set_at = 0, 2**62
        """By so much our own clock is set, and when, as it was until then."""
        self.now = 1_700_000_000 * SECOND
        self.began = self.now
        self.seq = [0, 0]
        self.estimator = PairEstimator()
        self.wander_at, self.wander = [0.0], [0.0]

    def truth(self, at):
        """The peer's clock minus ours: 7 ms, 21 ppm, a step, and a crystal's random walk."""
        elapsed = np.asarray(at - self.began, dtype=float)
        walk = np.interp(elapsed / SECOND, self.wander_at, self.wander)
        if self.slewed and self.slewed_at is None:
            self.slewed_at = self.now
        if self.slewed_at is not None:
            walk = walk + self.slewed * np.maximum(np.asarray(at) - self.slewed_at, 0)
        return np.rint(7e6 + SLOPE * elapsed + walk).astype(np.int64) + self.stepped_ns

    def own(self, at):
        """What our clock shows."""
        return at + np.where(np.asarray(at) >= self.set_at, self.set_ns, 0)

    def walk(self, seconds, ppb=1.0):
        """Let the frequency walk by so much per square root of a second."""
        steps = int(seconds * 100)
        rate = np.cumsum(self.rng.normal(0, ppb * 0.1, steps))  # ppb: ns a second
        self.wander_at = list(np.arange(steps + 1) / 100)
        self.wander = [0.0, *np.cumsum(rate / 100)]

    def packets(self, way, seconds):
        """A window of trains; queues fill and drain between the packets of one."""
        count = int(seconds * self.trains_hz)
        begin = np.sort(self.rng.uniform(0, seconds * SECOND, count)).astype(np.int64)
        sent = (self.now + begin[:, None] + np.arange(3) * 8000).reshape(-1)
        queued = np.repeat(self.rng.random(count) < self.load[way], 3)
        queue = queued * (self.rng.exponential(40e3, 3 * count) + self.rng.exponential(20e3))
        cold = np.tile([3000.0, 0, 0], count)
        most, period = self.waves[way]
        phase = (self.now - self.began + begin) / SECOND / period
        queue += np.repeat(most * (1 + np.sin(2 * np.pi * phase)) / 2, 3)
        if self.standing[way]:
            queue += np.repeat(self.standing[way] * (1 + self.rng.gamma(2, size=count)) / 2, 3)
        jitter = np.abs(self.rng.normal(0, self.jitter, 3 * count))
        if self.warm[way]:
            jitter -= 70 * (self.rng.random(3 * count) < self.warm[way])
        delay = self.delay[way] - self.shorter[way] + jitter + queue + cold
        heard = sent + np.rint(delay).astype(np.int64)
        seq = self.seq[way] + np.arange(3 * count)
        self.seq[way] += 3 * count + 1
        position = np.tile([1, 2, 3], count)
        if way == 0:
            return Packets(seq, position, self.own(sent), heard + self.truth(heard))
        return Packets(seq, position, sent + self.truth(sent), self.own(heard))

    def run(self, seconds, *, step=0.1):
        """Yields (estimate, its error, doubt) each tenth of a second."""
        for _ in range(round(seconds / step)):
            self.estimator.feed(self.packets(0, step), self.packets(1, step))
            self.now += round(step * SECOND)
            pair = self.estimator.estimate(int(self.own(self.now)))
            yield pair, None if pair is None else self.error(pair)

    def error(self, pair, later_ns=0):
        now = self.now + later_ns
        return float(pair.base_ns - int(self.truth(now)) + pair.apart(now))


@pytest.mark.parametrize(("load", "median", "most"), [
    ((0.0, 0.0), 8, 25), ((0.5, 0.5), 8, 30), ((0.85, 0.85), 15, 60), ((0.8, 0.0), 15, 60),
])  # fmt: skip
def test_clocks_apart_are_known_to_nanoseconds_and_within_the_bound(load, median, most):
    errors = []
    for seed in range(3):
        path = Path(seed, load=load)
        path.walk(12)
        list(path.run(3))
        for pair, error in path.run(8):
            errors.append(abs(error))
            assert abs(error) <= pair.error_ns(path.now)
            assert pair.slope == pytest.approx(SLOPE, abs=60e-9)
    assert np.median(errors) < median
    assert max(errors) < most


def test_the_bound_is_wider_at_warm_up_and_contains_the_truth():
    """Few points, and no line of before: how they scatter is hardly known."""
    first, later = [], []
    for seed in range(4):
        path = Path(seed, load=(0.5, 0.5))
        began = None
        for pair, error in path.run(9):
            if pair is None:
                continue
            assert abs(error) <= pair.error_ns(path.now)
            began = began or path.now
            age = (path.now - began) / SECOND
            if age < 3.5 or age > 5.5:
                line = path.estimator._line  # what bounds rest on
                known = line.error_ns(path.now) - line.step_ns / 2
                (first if age < 3.5 else later).append(known)
    assert np.median(first) > 1.5 * np.median(later)


@pytest.mark.parametrize("by", [
    -(10**9), -200 * MS, -50 * MS, -10 * MS, -MS, -3000, 3000, 50 * MS, 10**9,
])  # fmt: skip
def test_our_own_clock_is_set_back_or_ahead_and_that_is_recognized(by):
    """Back: stamps of before then seem to be of after it, for as long as it went back."""
    for seed in range(12):
        path = Path(seed, trains_hz=50, load=(0.3, 0.3) if seed % 2 else (0.0, 0.0))
        list(path.run(5))
        path.set_ns, path.set_at = by, path.now + 8 * MS * seed
        for _ in path.run(3, step=(0.1, 0.3)[seed % 2]):
            pass
        assert path.estimator.steps == 1, seed
        after = int(path.own(path.now))
        gone = path.estimator.last.apart(after) + path.estimator.last.base_ns
        assert abs(gone - (int(path.truth(path.now)) - by)) < 200


@pytest.mark.parametrize("load", [(0.0, 0.0), (0.6, 0.6)])
@pytest.mark.parametrize("step", [-(10**9), -3000, 3000, 50_000, 10**9])
def test_a_step_is_recognized_and_nothing_wrong_is_said_after_it(step, load):
    path = Path(1, load=load)
    list(path.run(5))
    path.stepped_ns = step
    said = list(path.run(2))
    assert path.estimator.steps == 1
    for pair, error in said:
        assert pair is None or abs(error) <= pair.error_ns(path.now) + SLOPE * 10**8
    back = next(i for i, (pair, _) in enumerate(said) if pair is not None)
    assert back <= 8, "known again within 0.8 s"
    list(path.run(3))
    assert abs(path.error(path.estimator.last)) < 30
    assert path.estimator.steps == 1


@pytest.mark.parametrize("load", [(0.7, 0.0), (0.0, 0.7), (0.9, 0.9)])
def test_queues_are_no_step(load):
    path = Path(2)
    list(path.run(4))
    path.load = load
    for pair, error in path.run(4):
        assert pair is not None
        assert abs(error) <= pair.error_ns(path.now)
    assert path.estimator.steps == 0


@pytest.mark.parametrize("delay", [(20_000, 20_000), (27_000, DELAY_NS), (DELAY_NS, 26_000),
                                   (50_000, DELAY_NS), (50_000, 50_000)])  # fmt: skip
def test_another_route_is_no_step_and_the_truth_stays_within_the_bound(delay):
    path = Path(3)
    list(path.run(7))
    path.delay = delay
    path.estimator.rules = replace(path.estimator.rules, patience_ns=16 * SECOND)
    # One way is as it was, and leads on; or both are as unlike as before. But of a shorter round
    # trip nobody can tell whether it was a queue that is gone.
    shorter = sum(delay) < 2 * DELAY_NS
    unlike = (delay[0] - delay[1]) / 2 if shorter else 0.0
    for pair, error in path.run(40):
        assert pair is None or abs(error) <= pair.bound_ns(path.now)
        assert pair is None or min(abs(error), abs(error - unlike)) < 400
    assert path.estimator.steps == 0
    assert path.error(path.estimator.last) == pytest.approx(unlike, abs=40)
    queued = path.estimator.queued
    list(path.run(2))
    assert path.estimator.queued == queued, "the other way has been learnt anew"
    path.delay = (delay[0] + 400_000, delay[1])
    errors = [abs(error - unlike) for pair, error in path.run(6) if pair is not None]
    assert len(errors) > 50
    assert np.median(errors) < 40


def test_who_began_in_a_standing_queue_knows_better_when_it_is_gone():
    path = Path(12, delay=(DELAY_NS + 400_000, DELAY_NS))
    list(path.run(20))
    assert abs(path.error(path.estimator.last)) == pytest.approx(200_000, rel=0.1)
    path.delay = (DELAY_NS, DELAY_NS)
    for pair, error in path.run(5):
        assert pair is None or abs(error) <= pair.bound_ns(path.now)
    assert abs(path.error(path.estimator.last)) < 40


@pytest.mark.parametrize("slope", [-90e-9, -40e-9, 40e-9, 90e-9, 150e-9])
def test_a_line_that_was_taken_with_a_wrong_slope_gives_way_to_those_that_prove_it_wrong(slope):
    """As one is that was made while a starting host was busy: later ones lie elsewhere."""
    path = Path(16)
    path.walk(30)
    list(path.run(8))
    estimator = path.estimator
    wrong = estimator.last._replace(slope=estimator.last.slope + slope)
    estimator.last = estimator._sure = estimator._anchor = wrong
    estimator._before.clear()
    estimator._before.append(wrong)
    for pair, error in path.run(10):
        assert pair is not None
        assert abs(error) <= pair.bound_ns(path.now)
    assert abs(path.error(path.estimator.last)) < 40
    assert path.estimator.steps == 0


def test_a_single_packet_that_cannot_be_is_nothing():
    path = Path(4)
    list(path.run(3))
    out, back = path.packets(0, 0.1), path.packets(1, 0.1)
    out.heard_ns[4:6] -= 25_000
    path.estimator.feed(out, back)
    path.now += 100 * MS
    pair = path.estimator.estimate(path.now)
    assert pair is not None
    assert abs(path.error(pair)) < 60
    assert path.estimator.steps == 0


def test_the_window_grows_while_points_are_few():
    path = Path(5, trains_hz=8)
    path.walk(40)
    for pair, error in path.run(30, step=1):
        assert pair is None or abs(error) <= pair.error_ns(path.now)
    assert pair.window_ns > 4 * Rules().window_ns
    path.trains_hz = 100
    assert list(path.run(3))[-1][0].window_ns == Rules().window_ns


def test_without_points_nothing_is_said_and_the_last_line_holds_for_a_while():
    path = Path(6)
    path.walk(40)
    pair, _ = list(path.run(5))[-1]
    for later in range(0, 20 * SECOND, SECOND):
        assert abs(path.error(pair, later)) <= pair.error_ns(path.now + later)
    assert pair.error_ns(path.now + 10 * SECOND) > 3 * pair.error_ns(path.now)
    path.now += 17 * SECOND
    assert path.estimator.estimate(path.now) is None
    assert not path.estimator.doubt


def test_after_a_reset_nothing_of_before_is_true():
    path = Path(7)
    list(path.run(4))
    path.estimator.reset()
    assert path.estimator.estimate(path.now) is None
    path.stepped_ns = 40_000
    for pair, error in path.run(1):
        assert pair is None or abs(error) <= pair.error_ns(path.now)
    assert path.estimator.steps == 0


@pytest.mark.parametrize("step", [5_000, 20_000, 45_000, 100_000, 300_000, -30_000, -100_000])
@pytest.mark.parametrize("at_s", [0.05, 0.3, 0.8])
def test_a_step_within_the_first_window_does_not_leave_the_bound(step, at_s):
    """There is no line before it that the points could be held against."""
    path = Path(8)
    list(path.run(at_s, step=at_s))
    path.stepped_ns = step
    path.estimator.last = None
    for pair, error in path.run(3):
        if pair is not None:
            assert pair.half_rtt_ns > 0
            assert abs(error) <= pair.bound_ns(path.now)
    assert abs(path.error(path.estimator.last)) < 60


@pytest.mark.parametrize("step", [420_000_000, -420_000_000, 5_000_000])
@pytest.mark.parametrize("at_s", [0.1, 0.3])
def test_a_large_step_within_the_first_window_makes_no_line(step, at_s):
    """Packets of before were still on their way when the host forgot everything."""
    path = Path(8)
    list(path.run(at_s, step=at_s))
    path.stepped_ns = step
    path.estimator.last = None
    for pair, error in path.run(3):
        if pair is not None:
            assert pair.slope_error <= path.estimator.rules.vague
            assert abs(error) <= pair.bound_ns(path.now)
    assert abs(path.error(path.estimator.last)) < 60


def test_a_queue_that_stands_for_long_does_not_bend_what_was_known():
    path = Path(6)
    list(path.run(8))
    path.delay = (DELAY_NS + 400_000, DELAY_NS)  # all packets of one direction wait 0.4 ms
    errors = [abs(error) for pair, error in path.run(20) if pair is not None]
    assert len(errors) > 150
    assert max(errors) < 250
    assert np.median(errors) < 30
    assert path.estimator.queued > 100
    path.delay = (DELAY_NS, DELAY_NS)
    list(path.run(3))
    assert abs(path.error(path.estimator.last)) < 30
    assert path.estimator.steps == 0


def test_too_few_points_for_a_while_do_not_make_a_queue_the_truth():
    path = Path(9)
    list(path.run(8))
    path.now += 17 * SECOND
    assert path.estimator.estimate(path.now) is None
    path.delay = (DELAY_NS + 400_000, DELAY_NS)
    errors = [abs(error) for pair, error in path.run(6) if pair is not None]
    assert len(errors) > 30
    assert max(errors) < 500, "the line of before, not one that is off by half of the queue"
    path.delay = (DELAY_NS, DELAY_NS)
    list(path.run(3))
    assert abs(path.error(path.estimator.last)) < 30


# One as a rule; each takes seconds, and the other two say the same of other queues.
def one_of(first, *others):
    return [first, *(pytest.param(other, marks=pytest.mark.nightly) for other in others)]


@pytest.mark.parametrize("standing", one_of((1_000, 9_000), (7_000, 1_000), (5_000, 5_000)))
def test_a_flood_of_minutes_both_ways_is_no_step_and_leaves_the_time_to_the_crystals(standing):
    """A line through queues is off by microseconds, the one of before by what crystals wander."""
    path = Path(13)
    path.walk(200)
    list(path.run(8))
    path.standing = standing
    for pair, error in path.run(150, step=0.5):
        assert pair is not None
        assert abs(error) <= pair.bound_ns(path.now)
        assert abs(error) < 1500
    # A queue goes from one direction to the other; and then there is none.
    for one, other in ((0, 1), (1, 0), (1, 1), (0, 0)):
        path.standing = (one * standing[0], other * standing[1])
        for pair, error in path.run(5):
            assert pair is not None
            assert abs(error) <= pair.bound_ns(path.now)
        assert path.estimator.steps == 0
    assert abs(path.error(path.estimator.last)) < 40


def test_the_bound_of_a_line_that_is_led_on_is_what_the_edges_leave():
    path = Path(14)
    path.walk(200)
    list(path.run(8))
    path.standing = (4_000, 6_000)
    bounds = [pair.bound_ns(path.now) for pair, _ in path.run(150, step=0.5)]
    # Half of the least round trip, and of both queues twice; after a minute alone it would be 40 us
    # and 90 us after two and a half.
    assert max(bounds[-100:]) < DELAY_NS + 30_000
    assert path.estimator.queued > 250, "in nearly every window"


@pytest.mark.parametrize("standing", one_of((5_000, 0), (4_000, 6_000), (0, 0)))
def test_what_a_way_takes_at_least_is_taken_off_the_bound(standing):
    """27 and 33 us are both more than the 26 that were told: 4 of 30 us are open."""
    path, untold = Path(16, delay=(27_000, 33_000)), Path(16, delay=(27_000, 33_000))
    path.estimator = PairEstimator(Rules(least_way_ns=26_000))
    for each in (path, untold):
        each.walk(80)
        list(each.run(8))
        each.standing = standing
    for (pair, error), (other, _) in zip(path.run(60), untold.run(60), strict=True):
        assert abs(error) <= pair.bound_ns(path.now)
        assert abs(error) > 2000, "the ways are unlike, and nobody can see it"
        assert pair.bound_ns(path.now) == pytest.approx(other.bound_ns(path.now) - 26_000, abs=1)
    assert not path.estimator.shorter


@pytest.mark.parametrize("standing", [(4_000, 4_000), (6_000, 0), (0, 6_000)])
def test_a_least_way_that_a_round_trip_proves_wrong_is_not_heeded_nor_later_behind_queues(standing):
    path = Path(17, delay=(20_000, 40_000))
    path.estimator = PairEstimator(Rules(least_way_ns=31_000))
    for later in ((0, 0), standing, (0, 0)):
        path.standing = later
        for pair, error in path.run(12):
            if pair is not None:
                assert abs(error) <= pair.bound_ns(path.now)
                assert path.estimator.shorter
    assert path.estimator.last.bound_ns(path.now) > 30_000


@pytest.mark.parametrize("standing", [(4_000, 4_000), (6_000, 0), (0, 6_000)])
def test_a_least_way_that_is_proved_wrong_late_leaves_no_bound_of_before(standing):
    """Who began in queues could not know."""
    path = Path(18, delay=(20_000, 40_000))
    path.estimator = PairEstimator(Rules(least_way_ns=31_000))
    path.standing = standing
    list(path.run(12))
    for later in ((0, 0), standing):
        path.standing = later
        list(path.run(3))
        for pair, error in path.run(40, step=0.2):
            assert pair is None or abs(error) <= pair.bound_ns(path.now)
    assert path.estimator.shorter


@pytest.mark.parametrize("seed", [15, 109, 139, 202, 105])
@pytest.mark.parametrize("periods", [(3, 4), (7, 9), (13, 5), (40, 40)])
@pytest.mark.parametrize("most", [50_000, 500_000])
def test_the_bound_holds_for_who_began_in_queues_that_come_and_go(periods, most, seed):
    """They turn the line, and with nothing known of before no other line speaks against it."""
    path = Path(seed)
    path.waves = ((most, periods[0]), (most, periods[1]))
    path.standing = (most / 10, most / 10)
    for pair, error in path.run(45, step=0.3):
        assert pair is None or abs(error) <= pair.bound_ns(path.now)
    path.waves, path.standing = ((0.0, 1.0), (0.0, 1.0)), (0.0, 0.0)
    for pair, error in path.run(5):
        assert pair is None or abs(error) <= pair.bound_ns(path.now)
    assert abs(path.error(path.estimator.last)) < 60


@pytest.mark.parametrize("first_s", [5, 9])
@pytest.mark.parametrize("seed", range(2))
def test_a_machine_that_ran_faster_at_first_leaves_no_skew(seed, first_s):
    """All ways were 70 ns shorter when the path was learnt. Then one of them passed for a queue,
    and after a minute for a longer way: 70 ns off for ever."""
    path = Path(seed, jitter=12)
    path.walk(120)
    path.shorter = (70.0, 70.0)
    list(path.run(first_s, step=0.3))
    path.shorter = (0.0, 0.0)
    errors = [abs(error) for pair, error in path.run(75, step=0.3) if pair is not None]
    assert max(errors) < 40
    assert max(errors[-30:]) < 25


@pytest.mark.parametrize("heard_s", [0.2, 0.45])
def test_a_peer_that_was_heard_for_a_moment_and_fell_silent_makes_no_first_line(heard_s):
    """A queue that fills in it turns the line, which only grows worse while nobody is heard."""
    path = Path(3, trains_hz=200)
    path.waves = ((60e3, 4 * heard_s), (0.0, 1.0))
    list(path.run(heard_s, step=0.05))
    path.trains_hz = 0
    assert [pair for pair, _ in path.run(2) if pair is not None] == []


@pytest.mark.parametrize("most_ns", [0.0, 20e3, 1e6])
def test_silence_makes_no_bound_narrower(most_ns):
    """That a round trip stays the same is no news while it is that of the same packets."""
    path = Path(4)
    path.waves = ((most_ns, 2.4), (0.0, 1.0))
    list(path.run(0.6))
    path.trains_hz = 0
    before = 0.0
    for pair, error in path.run(14):
        assert abs(error) <= pair.bound_ns(path.now)
        assert pair.sigmas == Rules().sigmas * Rules().warm
        # In the 0.6 s queues may have turned the line from one edge to the other.
        unseen = pair.asymmetry_ns + pair.bend * (path.now - pair.at_ns)
        assert unseen > before
        before = unseen
    assert before > 14 * 2 * DELAY_NS / 0.6
