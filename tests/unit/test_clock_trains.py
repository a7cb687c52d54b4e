"""Which trains met no queue."""

import numpy as np
import pytest

from clocksync.trains import LEAST_EPSILON_NS, MOST_EPSILON_NS, Packets, TrainFilter

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


def test_the_first_of_a_train_is_never_taken():
    packets, _ = trains(np.random.default_rng(1), 100)
    accepted = TrainFilter().pick(packets)
    assert set(packets.position[accepted.chosen].tolist()) == {2, 3}
    assert accepted.trains == 100


@pytest.mark.parametrize(("noise_ns", "wrong"), [(2, 0.1), (20, 0.1), (400, 0.35)])
@pytest.mark.parametrize("spoiled", [0.0, 0.5, 0.7])
def test_what_is_kept_met_no_queue_whatever_the_stamps_noise(noise_ns, wrong, spoiled):
    """A queue that changes a spacing by less than the stamps' noise cannot be told from it."""
    filter_ = TrainFilter()
    for seed in range(10):
        packets, queued = trains(np.random.default_rng(seed), 200, spoiled=spoiled,
                                 noise_ns=noise_ns)  # fmt: skip
        accepted = filter_.pick(packets)
    kept = np.unique(accepted.chosen // 3)
    clean = (~queued).sum()
    assert queued[kept].mean() < wrong
    assert len(kept) > 0.35 * clean
    assert accepted.rate == len(kept) / 200


def test_broken_trains_and_single_packets_are_left_out():
    rng = np.random.default_rng(2)
    packets, _ = trains(rng, 40)
    gone = np.ones(120, dtype=bool)
    gone[[1, 5, 12]] = False  # a second, a third and a first packet
    packets.position[60:63] = 0
    left = Packets(*(column[gone] for column in (packets.seq, packets.position,
                                                 packets.sent_ns, packets.heard_ns)))  # fmt: skip
    accepted = TrainFilter().pick(left)
    assert accepted.trains == 37
    pairs = left.seq[accepted.chosen].reshape(-1, 2)
    assert (pairs[:, 1] - pairs[:, 0] == 1).all()


def test_epsilon_stays_within_reason():
    still, _ = trains(np.random.default_rng(3), 50, noise_ns=0)
    wild, _ = trains(np.random.default_rng(3), 50, noise_ns=1e6)
    for packets, limit in ((still, LEAST_EPSILON_NS), (wild, MOST_EPSILON_NS)):
        filter_ = TrainFilter()
        filter_.pick(packets)
        assert filter_.epsilon_ns == limit


def test_a_window_with_hardly_a_train_teaches_nothing():
    filter_ = TrainFilter()
    filter_.pick(trains(np.random.default_rng(4), 100)[0])
    known = filter_.epsilon_ns
    filter_.pick(trains(np.random.default_rng(5), 3, noise_ns=5000)[0])
    assert filter_.epsilon_ns == known


def test_nothing_gives_nothing():
    empty = np.array([], dtype=np.int64)
    accepted = TrainFilter().pick(Packets(empty, empty, empty, empty))
    assert (len(accepted.chosen), accepted.trains, accepted.rate) == (0, 0, 0.0)
