"""The demo's figures on synthetic series whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from demo_synthetic import (
    HOSTS,
    RAIL_BPS,
    T0,
    end,
    flap,
    job,
    link_event,
    ns,
    one_fault,
    run,
    series,
    span,
    steer,
)

from lab.demo import verdict
from lab.demo.analysis import analyse, surviving_share
from lab.demo.record import CpuSample, RankEnd, Recording
from lab.demo.speed import BIN_S, throughput

FULL = RAIL_BPS * 16


def only(recording):
    analysis = analyse(recording)
    (result,) = analysis.results
    return result


def test_throughput_keeps_every_byte_whatever_the_sampling():
    for step, shift in ((0.1, 0.0), (0.073, 0.011), (0.25, 0.04)):
        flow = throughput(series(lambda _: 0.5, step=step, shift=shift))
        inner = flow.total[2:-4]
        assert np.allclose(inner, FULL / 2, rtol=0.001)
        assert set(flow.sent) == {(h, f"rail{r}") for h in HOSTS for r in range(4)}
        assert set(flow.received) == set(flow.sent)


def test_the_figures_of_one_fault():
    analysis = analyse(one_fault())
    assert analysis.speed.full == pytest.approx(FULL)
    (result,) = analysis.results
    assert result.share == 0.75
    assert result.detected_s == pytest.approx(0.002)
    assert result.detected_by == "carrier"
    # The communicator of h0 gave its path up too, but nothing says that it moved: only those that
    # did are counted; comm 3 never gave one up.
    assert result.steered_s == pytest.approx(0.010)
    assert result.dip_s == pytest.approx(0.3)
    assert result.carried == pytest.approx(1.0, abs=0.01)
    assert result.back_s == pytest.approx(2.2, abs=BIN_S)
    assert result.retransmitted_bytes == 600_000
    assert result.flaps_seen == {("h1", "rail1"): 1}
    assert result.told_s == pytest.approx(0.003)
    assert result.rejoined_s == 0  # every rail of this series always has its share
    assert result.after == pytest.approx(1.0)
    assert result.crossing is None
    assert (analysis.errors, analysis.corrupt_bytes) == (0, 0)


def test_a_fault_nobody_saw_is_not_detected():
    recording = one_fault()
    recording.events = []
    recording.job_events = []
    result = only(recording)
    assert (result.detected_s, result.told_s, result.steered_s) == (None, None, None)


def test_signs_of_another_link_or_before_or_long_after_do_not_count():
    recording = one_fault()
    recording.job_events = []
    recording.events = [
        flap(5.002, "h1", "rail2"),
        flap(5.002, "h2", "rail1"),
        flap(4.9, "h1", "rail1"),
        flap(9.0, "h1", "rail1"),
        steer(5.01, "h1", "rail2"),
        steer(5.01, "h1", "rail1", weight=500),
    ]
    result = only(recording)
    assert (result.detected_s, result.steered_s) == (None, None)


def test_two_nics_are_detected_when_both_are():
    recording = one_fault()
    recording.spans = [span(5, 10, ("h1", "rail1"), ("h1", "rail3"))]
    assert only(recording).detected_s is None
    recording.events.append(link_event(5.2, "h1", "rail3", "UP", "DOWN", "probes"))
    result = only(recording)
    assert result.detected_s == pytest.approx(0.2)
    assert result.detected_by == "daemon (probes)"
    assert result.share == 0.5


def test_steering_falls_back_to_the_daemons_word():
    recording = one_fault()
    recording.job_events = []
    assert only(recording).steered_s == pytest.approx(0.004)
    recording.spans = [span(5, 10, ("h1", "rail1"), ("h1", "rail3"))]
    assert only(recording).steered_s is None


def test_an_idle_path_given_up_later_does_not_count_but_a_slow_move_does():
    recording = one_fault()
    recording.job_events += [
        job(7.5, "h1", "rail1", "PATH_DOWN", comm=9),
        job(7.6, "h1", "rail0", "FIRST_BYTE", comm=9),
    ]
    assert only(recording).steered_s == pytest.approx(0.010)
    recording.job_events += [
        job(5.1, "h1", "rail1", "PATH_DOWN", comm=10),
        job(7.6, "h1", "rail0", "FIRST_BYTE", comm=10),
    ]
    assert only(recording).steered_s == pytest.approx(2.6)


def test_a_plugins_detector_counts():
    recording = one_fault()
    recording.events = []
    recording.job_events = [job(5.09, "h1", "rail1", "PATH_DOWN", detail=3)]
    result = only(recording)
    assert result.detected_s == pytest.approx(0.09)
    assert result.detected_by == "plugin (no ack)"


def test_a_miscounted_flap_is_not_ok():
    recording = one_fault()
    recording.spans = [span(5, 9, ("h1", "rail1"), kind="flap", flaps=20)]
    assert not only(recording).flaps_exact
    recording.events.append(flap(6, "h1", "rail1", count=19))
    assert only(recording).flaps_exact
    recording.events.append(flap(7, "h1", "rail1", count=1))
    assert not only(recording).flaps_exact


def test_a_black_hole_with_a_carrier_loss_is_a_miscount():
    recording = one_fault()
    recording.spans = [span(5, 10, ("h1", "rail1"), kind="blackhole", flaps=0)]
    assert not only(recording).flaps_exact


def test_a_job_that_never_comes_back():
    recording = run(lambda t: 1.0 if t < 5 else 0.7, [span(5, 10, ("h1", "rail1"))])
    result = only(recording)
    assert result.back_s is None
    # 0.7 is above 90 % of three quarters: no dip, though never back.
    assert result.after == pytest.approx(0.7)
    assert result.dip_s == 0
    assert result.carried == pytest.approx(0.7 / 0.75, abs=0.01)


def test_a_job_slower_than_the_survivors_could_is_one_long_dip():
    recording = run(lambda t: 0.5 if 5 <= t < 12 else 1.0, [span(5, 10, ("h1", "rail1"))])
    result = only(recording)
    assert result.dip_s == pytest.approx(7.0, abs=BIN_S)
    assert result.back_s == pytest.approx(2.0, abs=BIN_S)


def test_a_job_that_stands_still_carries_nothing_though_the_daemon_steered():
    recording = one_fault()
    recording.series = series(lambda t: 0.0 if 5 <= t < 10.5 else 1.0)
    result = only(recording)
    assert result.back_s is not None
    assert result.carried == 0


def test_a_job_that_never_moved_has_no_speed():
    recording = one_fault()
    recording.series = series(lambda _: 0.0)
    result = only(recording)
    assert (result.back_s, result.rejoined_s, result.carried, result.after) == (None, None, 0, 0)


def without_rail(ranks, host, column, rows, *directions):
    """No bytes over that rail in those rows; the others carry on as before."""
    out = []
    for rank in ranks:
        arrays = {name: getattr(rank, name).copy() for name in directions}
        if rank.host == host:
            for array in arrays.values():
                array[rows, column] = 0
        out.append(replace(rank, **arrays))
    return out


@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_a_rail_that_never_carries_again_one_way_is_told(direction):
    recording = one_fault()
    recording.series = without_rail(series(lambda _: 1.0), "h1", 1, slice(50, None), direction)
    result = only(recording)
    assert result.rejoined_s is None
    assert result.back_s is None


def test_a_rails_return_is_seen_through_noise():
    recording = one_fault()
    chance = np.random.default_rng(1)
    ranks = without_rail(series(lambda _: 1.0), "h1", 1, slice(50, 121), "tx", "rx")
    noise = chance.uniform(0.2, 0.6, len(ranks[0].tx))
    noise[:50] = chance.uniform(0.2, 1.0, 50)
    recording.series = [
        replace(rank, tx=rank.tx * noise[:, None], rx=rank.rx * noise[:, None]) for rank in ranks
    ]
    assert only(recording).rejoined_s == pytest.approx(2.0, abs=0.3)


def cpu(taken, own, *, seconds=20, cores=2.0):
    """Samples ten times a second; ``taken(t)`` and ``own(t)`` are parts of all cores."""
    samples, idle, used = [CpuSample(T0, 100.0, 50.0, 7.0)], 50.0, 7.0
    for tick in range(seconds * 10):
        t = tick / 10
        used += own(t) * cores / 10
        idle += (1 - own(t) - taken(t)) * cores / 10
        samples.append(CpuSample(ns(t + 0.1), 100.0 + cores * (t + 0.1), idle, used))
    return samples


def test_what_others_took_of_the_cpu_is_measured():
    recording = one_fault()
    recording.cpu = cpu(lambda t: 0.1 if t < 12 else 0.6, lambda t: 0.8 if t < 12 else 0.3)
    result = only(recording)
    assert result.taken == pytest.approx(0.1, abs=0.02)
    assert result.taken_after == pytest.approx(0.6, abs=0.02)
    assert result.after == pytest.approx(1.0)
    recording.cpu = []
    assert only(recording).taken == 0


def test_full_speed_is_that_of_the_best_undisturbed_stretch():
    def level(t):
        if t < 5:
            return 0.5
        return 0.75 if t < 12.2 else 1.0

    analysis = analyse(run(level, [span(5, 10, ("h1", "rail1"))]))
    assert analysis.speed.full == pytest.approx(FULL)


def crossed(part):
    """h1 loses rail 0, h2 loses rail 3; ``part`` of full speed goes from h1 rail 3 to h2 rail 0."""
    ranks = series(lambda _: 1.0)
    rows = slice(50, 90)
    ranks = without_rail(ranks, "h1", 0, rows, "tx", "rx")
    ranks = without_rail(ranks, "h2", 3, rows, "tx", "rx")
    for rank in ranks:
        if rank.host == "h1":
            rank.tx[rows, 3] *= part
        if rank.host == "h2":
            rank.rx[rows, 0] *= part
    return ranks


def test_what_crosses_is_measured_on_the_rail_whose_other_end_is_dead():
    both = span(5, 9, ("h1", "rail0"), ("h2", "rail3"))
    result = only(run(None, [both], series=crossed(0.5)))
    assert result.crossing.source == ("h1", "rail3")
    assert result.crossing.target == ("h2", "rail0")
    assert result.crossing.bytes == pytest.approx(0.5 * RAIL_BPS * 3.5, rel=0.05)
    assert result.crossing.part == pytest.approx(0.5 / 2.5, rel=0.01)
    assert only(run(None, [both], series=crossed(0.0))).crossing.bytes == 0


def test_faults_that_leave_every_rail_its_own_path_cross_nothing():
    for rails in (
        [("h1", "rail0")],
        [("h1", "rail0"), ("h1", "rail3")],
        [("h1", "rail0"), ("h3", "rail3")],
        [("h1", "rail0"), ("h2", "rail0")],
    ):
        assert only(run(lambda _: 1.0, [span(5, 9, *rails)])).crossing is None


def test_one_fast_bin_is_not_back_and_one_slow_bin_does_not_undo_it():
    def level(t):
        if 11.0 <= t < 11.1:
            return 1.0  # a burst while still on survivors
        if 12.3 <= t < 12.4:
            return 0.8  # noise after the return
        return 0.75 if 5 <= t < 12 else 1.0

    assert only(run(level, [span(5, 10, ("h1", "rail1"))])).back_s == pytest.approx(2.0, abs=BIN_S)


def test_a_rail_still_held_counts_as_lost_in_the_next_fault():
    def level(t):
        return 1.0 if t < 5 else 0.5

    recording = run(
        level,
        [span(5, 7, ("h1", "rail1")), span(9, 11, ("h1", "rail0")), span(13, 15, ("h2", "rail0"))],
    )
    recording.series = without_rail(recording.series, "h1", 1, slice(50, None), "tx", "rx")
    recording.series = without_rail(recording.series, "h1", 0, slice(90, None), "tx", "rx")
    first, second, third = analyse(recording).results
    assert (first.share, second.share, third.share) == (0.75, 0.5, 0.5)


def test_surviving_share_is_that_of_the_worst_host():
    assert surviving_share([], 4) == 1.0
    assert surviving_share([("h1", "a"), ("h2", "b")], 4) == 0.75
    assert surviving_share([("h1", "a"), ("h1", "b"), ("h2", "b")], 4) == 0.5
    assert surviving_share([("h1", "a"), ("h1", "a")], 4) == 0.75


@pytest.mark.parametrize(
    ("bad", "errors", "corrupt"),
    [
        (end("h3", errors=2), 2, 0),
        (end("h3", corrupt_bytes=7), 0, 7),
        (end("h3", interrupted=True), 0, 0),
        (replace(end("h3"), status=-9), 0, 0),
        (replace(end("h3"), error={"code": 6}), 1, 0),
        (RankEnd("h3", 0, None), 0, 0),
    ],
)
def test_a_rank_that_is_not_clean_fails_the_demo(bad, errors, corrupt):
    recording = one_fault()
    recording.ends[3] = bad
    analysis = analyse(recording)
    assert (analysis.errors, analysis.corrupt_bytes) == (errors, corrupt)
    assert not analysis.clean
    assert verdict.failures(analysis)


def test_an_empty_recording_is_not_ok():
    analysis = analyse(Recording())
    assert analysis.results == ()
    assert not verdict.ok(analysis)
    recording = one_fault()
    recording.series = []
    assert not verdict.ok(analyse(recording))


def test_nothing_depends_on_the_zero_of_the_clock():
    recording = one_fault()
    assert recording.start_ns == T0 == ns(0)
    assert analyse(recording).throughput.edges_ns[0] == T0
