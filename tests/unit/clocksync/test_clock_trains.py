"""Which trains met no queue."""

import numpy as np
import pytest

from clocksync.pair.points import Points, take
from clocksync.pair.trains import LEAST_EPSILON_NS, MOST_EPSILON_NS, Packets, TrainFilter, Trains

GAP_NS = 3000


def trains(rng, count, *, spoiled=0.0, noise_ns=20.0, first_late_ns=700):
    """Trains of three; the spacing of a share of them is changed by a queue."""
    start = np.arange(count) * 10_000_000
    sent = (start[:, None] + np.arange(3) * GAP_NS).astype(np.int64)
    delay = 5000 + rng.normal(0, noise_ns, (count, 3))
    delay[:, 0] += first_late_ns
    queue = np.where(rng.random((count, 1)) < spoiled, rng.exponential(8000, (count, 3)), 0)
    heard = sent + (delay + queue).astype(np.int64)
    seq = np.arange(count * 3)
    position = np.tile([1, 2, 3], count)
    whole = Packets(seq, position, sent.ravel(), heard.ravel())
    return whole, (queue.sum(axis=1) > 0)


def picked(filter_, packets):
    """Which of its trains the filter keeps."""
    changes = packets.trains().changes()
    return changes <= filter_.learn(changes.tolist())


def test_the_first_of_a_train_is_never_taken():
    packets, _ = trains(np.random.default_rng(1), 100)
    found = packets.trains()
    assert found.sent_ns.ravel().tolist() == packets.sent_ns[packets.position > 1].tolist()
    assert found.heard_ns.shape == (100, 2)


@pytest.mark.parametrize(("noise_ns", "wrong"), [(2, 0.1), (20, 0.1), (400, 0.35)])
@pytest.mark.parametrize("spoiled", [0.0, 0.5, 0.7])
def test_what_is_kept_met_no_queue_whatever_the_stamps_noise(noise_ns, wrong, spoiled):
    """A queue that changes a spacing by less than the stamps' noise cannot be told from it."""
    filter_ = TrainFilter()
    for seed in range(10):
        packets, queued = trains(np.random.default_rng(seed), 200, spoiled=spoiled,
                                 noise_ns=noise_ns)  # fmt: skip
        kept = picked(filter_, packets)
    assert queued[kept].mean() < wrong
    assert kept.sum() > 0.35 * (~queued).sum()


def test_broken_trains_and_single_packets_are_left_out():
    rng = np.random.default_rng(2)
    packets, _ = trains(rng, 40)
    gone = np.ones(120, dtype=bool)
    gone[[1, 5, 12]] = False  # a second, a third and a first packet
    packets.position[60:63] = 0
    left = Packets(*(column[gone] for column in (packets.seq, packets.position,
                                                 packets.sent_ns, packets.heard_ns)))  # fmt: skip
    found = left.trains()
    assert found.sent_ns.shape == (37, 2)
    assert (np.diff(found.sent_ns) == GAP_NS).all()


def test_epsilon_stays_within_reason():
    still, _ = trains(np.random.default_rng(3), 50, noise_ns=0)
    wild, _ = trains(np.random.default_rng(3), 50, noise_ns=1e6)
    for packets, limit in ((still, LEAST_EPSILON_NS), (wild, MOST_EPSILON_NS)):
        filter_ = TrainFilter()
        picked(filter_, packets)
        assert filter_.epsilon_ns == limit


def test_a_hand_of_trains_teaches_nothing_until_there_are_more():
    filter_ = TrainFilter()
    picked(filter_, trains(np.random.default_rng(4), 100)[0])
    known = filter_.epsilon_ns
    for seed, more in ((5, False), (6, False), (7, True)):
        picked(filter_, trains(np.random.default_rng(seed), 3, noise_ns=5000)[0])
        assert (filter_.epsilon_ns > known) is more


def test_what_is_learnt_is_the_same_however_many_come_at_once():
    rng = np.random.default_rng(3)
    calm, noisy = (np.abs(rng.normal(0, noise, 400)).astype(int).tolist() for noise in (50, 300))
    learnt = []
    for batch in (10, 40, 100):
        filter_ = TrainFilter()
        for changes, wanted in ((calm, 32), (noisy, 191)):
            for at in range(0, 400, batch):
                filter_.learn(changes[at : at + batch])
            learnt.append(filter_.epsilon_ns / wanted)
    assert learnt == pytest.approx([1.0] * 6, rel=0.35)


def test_nothing_gives_nothing():
    empty = np.array([], dtype=np.int64)
    assert Packets(empty, empty, empty, empty).trains().sent_ns.shape == (0, 2)
    assert TrainFilter().learn([]) == 0.0


def test_many_directions_at_once_are_as_each_by_itself():
    rng = np.random.default_rng(8)
    alone, together = [Points() for _ in range(4)], [Points() for _ in range(4)]
    for round_ in range(30):
        came = []
        for number in range(4):
            # One has nothing now and then, one hears its packets late.
            count = 0 if number == 1 and round_ % 3 else 6
            found = trains(rng, count, spoiled=0.2 * number)[0].trains()
            late = 10**8 * (round_ - 3 * (number == 2 and round_ == 20))
            came.append(Trains(found.sent_ns + late, found.heard_ns + late))
        take(list(zip(together, came, strict=True)), 1)
        for points, new in zip(alone, came, strict=True):
            take([(points, new)], 1)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.since(0), other.since(0))
        assert one.rate(0) == other.rate(0)
        at = one.since(0)[0]
        assert len(at) > 40
        assert (np.diff(at) >= 0).all(), "in order, also of those that came late"


def test_old_points_are_dropped_and_the_share_kept_is_of_the_rest():
    points, rng = Points(), np.random.default_rng(9)
    for second in range(40):
        found = trains(rng, 100, spoiled=0.0 if second < 30 else 0.9)[0].trains()
        take([(points, Trains(found.sent_ns + second * 10**9, found.heard_ns + second * 10**9))], 1)
        points.drop((second - 15) * 10**9)
    assert points.since(0)[0].min() >= 24 * 10**9
    assert points.rate(35 * 10**9) < points.rate(0) < points.rate(26 * 10**9) + 0.1
    assert len(points.since(38 * 10**9)[0]) < len(points.since(35 * 10**9)[0]) / 2
