"""Delay of a path from synthetic stamps: clocks that drift, queues, other routes, loss."""

from __future__ import annotations

import random
from statistics import median

import pytest

from fabricd.delay.path import PathDelay, Reading
from fabricd.probes.stamps import Exchange

US = 1000
SEC = 10**9


class Link:
    """Two hosts whose clocks are apart; delays in microseconds, stamps as a prober records them."""

    def __init__(self, seed, *, offset_s=3.0, drift_ppm=30.0, rate=20, out=20.0, back=20.0):
        self.dice = random.Random(seed)
        self.offset, self.drift, self.rate = offset_s * SEC, drift_ppm, rate
        self.out, self.back = out, back
        self.queue_out = self.queue_back = lambda _t: 0.0
        self.loss = 0.0
        self.t = 1_000 * SEC
        self.lost = 0

    def peer(self, t):
        """The peer's clock at our time t."""
        return round(t + self.offset + self.drift * 1e-6 * (t - 1_000 * SEC))

    def jitter(self):
        return self.dice.expovariate(1 / 4.0)

    def second(self):
        """The exchanges of one second."""
        found = []
        for i in range(self.rate):
            at = self.t + round((i + self.dice.random()) * SEC / self.rate)
            if self.dice.random() < self.loss:
                self.lost += 1
                continue
            there = at + (self.out + self.jitter() + self.queue_out(at)) * US
            hold = self.dice.uniform(0, 0.05) * SEC
            sent = there + hold
            here = sent + (self.back + self.jitter() + self.queue_back(sent)) * US
            found.append(Exchange(at, self.peer(there), self.peer(sent), round(here), 0))
        self.t += SEC
        return sorted(found, key=lambda e: e.heard)


def run(link, path, seconds, reading=None):
    steps, lost = [], link.lost
    for _ in range(seconds):
        exchanges = link.second()
        known = None if reading is None else reading(exchanges[-1].heard)
        steps.append(path.step(exchanges, link.lost - lost, known))
        lost = link.lost
    return steps


def p50(delays):
    return median(delays)


@pytest.mark.parametrize("drift", [-30.0, -3.0, 0.0, 12.0, 30.0])
@pytest.mark.parametrize("offset", [-5.0, 0.0, 1e6])
def test_quiet_path_has_its_base_and_no_queue(drift, offset):
    path = PathDelay()
    steps = run(Link(1, drift_ppm=drift, offset_s=offset), path, 60)
    assert path.base_ns == pytest.approx(40 * US, abs=3 * US)
    for step in steps[15:]:
        assert p50(step.tx) < 12 * US
        assert p50(step.rx) < 12 * US
        assert step.sure
        assert step.change is None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_queue_of_half_a_minute_is_seen_on_its_way(seed, way):
    dice = random.Random(seed + 100)
    drift = dice.choice([-30, -11, 17, 30])
    link = Link(seed, drift_ppm=drift, offset_s=dice.uniform(-9, 9))
    path = PathDelay()
    run(link, path, 40)
    depth = dice.choice([150, 400, 2000])

    def breathing(_t):
        return depth * dice.uniform(0.5, 1.0)

    setattr(link, "queue_out" if way == "tx" else "queue_back", breathing)
    during = run(link, path, 30)
    for step in during[1:]:
        here, other = (step.tx, step.rx) if way == "tx" else (step.rx, step.tx)
        assert p50(here) == pytest.approx(0.75 * depth * US, rel=0.3)
        assert p50(other) < 0.15 * depth * US + 15 * US
        assert step.change is None, "a queue is no route"
    link.queue_out = link.queue_back = lambda _t: 0.0
    after = run(link, path, 10)
    assert all(p50(s.tx) + p50(s.rx) < 30 * US for s in after[1:])
    assert path.base_ns == pytest.approx(40 * US, abs=4 * US)


def test_ten_minutes_of_a_queue_do_not_become_the_base():
    link, path, dice = Link(5, drift_ppm=-22), PathDelay(), random.Random(5)
    run(link, path, 60)
    link.queue_back = lambda _t: 800 * dice.uniform(0.6, 1.0)
    during = run(link, path, 600)
    assert all(s.change is None for s in during)
    last = during[-1]
    assert p50(last.rx) == pytest.approx(640 * US, rel=0.2)
    assert p50(last.tx) < 100 * US
    assert path.base_ns == pytest.approx(40 * US, abs=4 * US)


def test_queues_on_both_ways_are_told_apart():
    link, path, dice = Link(6, drift_ppm=8), PathDelay(), random.Random(6)
    run(link, path, 40)
    link.queue_out = lambda _t: 300 * dice.uniform(0.5, 1.0)
    link.queue_back = lambda _t: 1000 * dice.uniform(0.5, 1.0)
    for step in run(link, path, 15)[1:]:
        assert p50(step.tx) == pytest.approx(225 * US, rel=0.35)
        assert p50(step.rx) == pytest.approx(750 * US, rel=0.2)


@pytest.mark.parametrize(("out", "back"), [(60.0, 20.0), (20.0, 95.0), (70.0, 60.0)])
def test_another_route_is_a_new_base_with_its_way(out, back):
    link, path = Link(7, drift_ppm=14), PathDelay()
    run(link, path, 60)
    link.out, link.back = out, back
    steps = run(link, path, 25)
    changes = [s.change for s in steps if s and s.change]
    assert len(changes) == 1
    change = changes[0]
    assert change.after_ns - change.before_ns == pytest.approx((out + back - 40) * US, abs=5 * US)
    assert change.tx_ns == pytest.approx((out - 20) * US, abs=6 * US)
    assert change.rx_ns == pytest.approx((back - 20) * US, abs=6 * US)
    assert p50(steps[-1].tx) + p50(steps[-1].rx) < 30 * US, "it is no queue any more"


def test_a_shorter_route_is_a_new_base():
    link, path = Link(8, out=60, back=60), PathDelay()
    run(link, path, 40)
    link.out = link.back = 20.0
    changes = [s.change for s in run(link, path, 8) if s and s.change]
    assert len(changes) == 1
    assert path.base_ns == pytest.approx(40 * US, abs=6 * US)


def test_a_full_queue_that_drops_is_no_route():
    """Steady as a route, but packets are lost: a policer, or a queue that is always full."""
    link, path = Link(9), PathDelay()
    run(link, path, 40)
    link.queue_back, link.loss = (lambda _t: 900.0), 0.1
    steps = run(link, path, 60)
    assert all(s.change is None for s in steps)
    assert p50(steps[-1].rx) == pytest.approx(900 * US, rel=0.1)


def test_loss_alone_is_no_queue():
    link, path = Link(10, rate=40), PathDelay()
    run(link, path, 30)
    link.loss = 0.3
    for step in run(link, path, 30):
        assert p50(step.tx) < 15 * US
        assert p50(step.rx) < 15 * US


@pytest.mark.parametrize("jump_ms", [0.4, -7.0, 250.0, 2500.0, -86_400_000.0])
def test_a_stepped_clock_is_neither_queue_nor_route(jump_ms):
    link, path = Link(11, drift_ppm=-9), PathDelay()
    run(link, path, 40)
    link.offset += jump_ms * 1e6
    steps = run(link, path, 30)
    assert all(s is None or s.change is None for s in steps)
    for step in steps[-15:]:
        assert p50(step.tx) < 15 * US
        assert p50(step.rx) < 15 * US
    assert path.base_ns == pytest.approx(40 * US, abs=5 * US)


def test_a_clock_slewed_by_ntp_is_followed():
    link, path = Link(12, drift_ppm=10), PathDelay()
    run(link, path, 40)
    for ppm in (10, 60, 200, 200, 60, 10):
        link.offset += (link.drift - ppm) * 1e-6 * (link.t - 1_000 * SEC)
        link.drift = ppm
        steps = run(link, path, 15)
        assert all(s is None or s.change is None for s in steps)
    last = run(link, path, 20)[-1]
    assert p50(last.tx) < 20 * US
    assert p50(last.rx) < 20 * US


def test_a_step_while_queued_leaves_the_direction_open():
    link, path, dice = Link(13), PathDelay(), random.Random(3)
    run(link, path, 40)
    link.queue_out = lambda _t: 300 * dice.uniform(0.8, 1.0)
    run(link, path, 5)
    link.offset += 5_000 * US
    step = run(link, path, 4)[-1]
    assert not step.sure
    assert p50(step.tx) + p50(step.rx) == pytest.approx(270 * US, rel=0.3)


def drifting(seconds, *, ppm=40, queue_us=0):
    """Two exchanges of each of these seconds; the peer's clock runs fast."""
    for second in seconds:
        found = []
        for at in (1_000 * SEC + second * SEC, 1_000 * SEC + second * SEC + SEC // 2):
            there = at + (20 + (queue_us + second % 7 * 10 if queue_us else second % 3)) * US
            ahead = 3 * SEC + ppm * (there - 1_000 * SEC) // 10**6
            found.append(Exchange(at, there + ahead, there + ahead, there + 20 * US, 0))
        yield found


@pytest.mark.parametrize("ppm", [40, -40])
def test_drift_that_adds_up_to_a_second_is_no_step_not_even_while_a_queue_stands(ppm):
    path = PathDelay()
    for exchanges in drifting(range(24_000), ppm=ppm):
        path.step(exchanges)
    for exchanges in drifting(range(24_000, 26_000), ppm=ppm, queue_us=300):
        step = path.step(exchanges)
        assert step is not None, "blind while the queue stands"
        assert step.sure
        assert p50(step.tx) == pytest.approx(330 * US, abs=40 * US)
        assert p50(step.rx) < 10 * US
        assert step.change is None
    assert path.base_ns == pytest.approx(40 * US, abs=3 * US)


def test_hours_without_a_packet_are_drift_and_no_step():
    path = PathDelay()
    for exchanges in drifting(range(600)):
        path.step(exchanges)
    known = [path.step(each) for each in drifting(range(600 + 26_000, 600 + 26_030))]
    assert known[0] is not None, "the line leads there, but for what its slope is wrong by"
    assert known[-1] is not None
    assert known[-1].sure
    assert p50(known[-1].tx) + p50(known[-1].rx) < 10 * US


def test_fabric_time_gives_one_way_delays():
    link, path = Link(14, out=50, back=20, drift_ppm=25), PathDelay()

    def reading(at):
        return Reading(round(link.peer(at) - at) + 40, 500)

    run(link, path, 60, reading)
    assert path.asymmetry_ns == pytest.approx(15 * US, abs=3 * US)
    assert path.bound_ns == 500
    link.queue_back = lambda _t: 400.0
    step = run(link, path, 4, reading)[-1]
    assert p50(step.rx) == pytest.approx(400 * US, rel=0.1)
    assert p50(step.tx) < 15 * US


def test_other_stamps_begin_anew():
    link, path = Link(15), PathDelay()
    run(link, path, 20)
    link.out = link.back = 2.0
    for _ in range(30):
        path.step([e._replace(hardware=3) for e in link.second()])
    assert path.base_ns == pytest.approx(4 * US, abs=3 * US)


def test_one_half_and_nothing_are_no_step():
    link, path = Link(16), PathDelay()
    assert path.step([]) is None
    assert path.step([e._replace(sent=0, arrived=0) for e in link.second()]) is None
    assert path.step([e._replace(peer_sent=0, heard=0) for e in link.second()]) is None
    assert path.base_ns is None


@pytest.mark.parametrize(
    "stray", [Exchange(1_700_000_000 * SEC, 1, 2, 1_700_000_000 * SEC, 3), Exchange(0, 0, 0, 0, 0)],
    ids=["another clock", "neither half"],
)  # fmt: skip
def test_a_stray_as_the_newest_moves_nothing(stray):
    """Kernel stamps among a NIC's are of another clock: their seconds are not the line's."""
    link, path, alone = Link(4, drift_ppm=12.0), PathDelay(), PathDelay()
    for second in range(90):
        exchanges = link.second()
        with_stray = [*exchanges, stray] if second in (30, 31, 32) else exchanges
        assert path.step(with_stray) == alone.step(exchanges)
        if second == 60:
            link.drift += 1.5
