"""The exit status of the demo: runs that must pass, and runs that must not."""

from dataclasses import replace

import pytest
from demo_synthetic import RAIL_BPS, end, flap, link_event, ns, one_fault, run, series, span

from lab.demo import report, verdict
from lab.demo.analysis import analyse
from lab.demo.record import CpuSample


def failures(recording):
    return verdict.failures(analyse(recording))


def slow(recording, level):
    recording.series = series(level)
    return recording


def played(t):
    """Part of full speed of a run as it should be."""
    if 5.0 <= t < 5.3:
        return 0.2
    return 0.75 if 5.3 <= t < 12.2 else 1.0


def test_a_good_run_passes():
    recording = one_fault()
    recording.planned = 1
    assert failures(recording) == []
    assert verdict.ok(analyse(recording))
    assert verdict.sentence(analyse(recording)).startswith("every fault detected, steered")
    assert verdict.sentence(analyse(recording)).endswith("full speed after each")


def test_a_job_40_percent_slower_after_the_last_fault_fails():
    recording = slow(one_fault(), lambda t: 0.6 if t >= 12.2 else played(t))
    assert failures(recording) == ["fault 1: 60% (at least 75%) of full speed afterwards"]


def taken(recording, part):
    """Other processes had that part of two cores from 12 s on; the demo had the rest."""
    recording.cpu = [
        CpuSample(ns(t), 2.0 * t, 0.0, 2.0 * t - 2.0 * part * max(0, t - 12)) for t in range(21)
    ]
    return recording


@pytest.mark.parametrize(("part", "text"), [(0.02, "69%"), (0.049, "60%"), (0.06, None)])
def test_less_is_demanded_the_more_of_the_cpu_others_took(part, text):
    recording = slow(one_fault(), lambda t: 0.6 if t >= 12.2 else played(t))
    found = failures(taken(recording, part))
    if text:
        assert found == [f"fault 1: 60% (at least {text}) of full speed afterwards"]
    else:
        assert found == []


def test_what_is_not_judged_is_said_and_excuses_nothing_else():
    recording = taken(one_fault(), 0.4)
    result = analyse(recording).results[0]
    assert report.row(recording, result).after == "(100%)"
    (note,) = report.notes(analyse(recording))
    assert note == "fault 1: not judged, after (others took 40% of the CPU); all else is"
    assert failures(recording) == []
    assert verdict.sentence(analyse(recording)).endswith("full speed wherever it could be judged")
    for rank in recording.series:
        if rank.host == "h1":
            rank.rx[50:, 1] = 0
    assert failures(recording) == ["fault 1: a rail does not carry its share again"]


def test_a_short_dip_afterwards_does_not_fail():
    assert failures(slow(one_fault(), lambda t: 0.4 if 15 <= t < 17 else played(t))) == []


def test_a_job_that_stands_still_during_the_fault_fails():
    recording = slow(one_fault(), lambda t: 0.0 if 5 <= t < 10.5 else 1.0)
    (text,) = failures(recording)
    assert "surviving paths carried 0% (at least 65%)" in text


@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_a_rail_that_never_returns_fails(direction):
    recording = one_fault()
    for rank in recording.series:
        if rank.host == "h1":
            getattr(rank, direction)[50:, 1] = 0
    assert "fault 1: a rail does not carry its share again" in failures(recording)


def test_a_rail_that_returns_late_fails_though_the_job_is_fast():
    recording = one_fault()
    for rank in recording.series:
        if rank.host == "h1":
            rank.tx[50:140, 1] = 0
    (text,) = failures(recording)
    assert "share again within 3 s (it took 3.80 s)" in text
    recording.spans = [replace(recording.spans[0], returns_within_s=4.0)]
    assert failures(recording) == []


def test_what_could_not_be_measured_fails():
    recording = one_fault()
    recording.spans = [replace(recording.spans[0], returns_within_s=9.8)]
    assert failures(recording) == ["fault 1: an unknown part of full speed afterwards"]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (end("h3", corrupt_bytes=1), "the job had 0 errors and 1 corrupt bytes"),
        (end("h3", errors=1), "the job had 1 errors and 0 corrupt bytes"),
        (end("h3", interrupted=True), "a rank did not end by itself with exit status 0"),
        (replace(end("h3"), status=-9), "a rank did not end by itself with exit status 0"),
        (replace(end("h3"), status=None, end=None), "a rank did not end by itself"),
    ],
)
def test_a_job_that_is_not_clean_fails_and_is_said_first(bad, text):
    recording = one_fault()
    recording.events = []
    recording.ends[3] = bad
    assert failures(recording)[0].startswith(text)


def test_a_fault_nobody_detected_fails():
    recording = one_fault()
    recording.events, recording.job_events = [], []
    found = failures(recording)
    assert "fault 1: not detected" in found
    assert "fault 1: no DOWN on the timeline" in found
    assert "fault 1: not steered" in found


def test_a_fault_that_only_the_plugin_saw_is_missing_on_the_timeline():
    recording = one_fault()
    recording.events = [flap(5.002, "h1", "rail1")]
    assert failures(recording) == ["fault 1: no DOWN on the timeline"]


def test_late_words_fail():
    recording = one_fault()
    recording.job_events = []
    recording.events = [
        flap(6.5, "h1", "rail1"),
        link_event(8.5, "h1", "rail1", "UP", "DOWN", "carrier lost"),
    ]
    found = failures(recording)
    assert "fault 1: not detected within 1 s (it took 1.50 s)" in found
    assert "fault 1: no DOWN on the timeline within 3 s (it took 3.50 s)" in found


def test_a_miscounted_flap_fails():
    recording = one_fault()
    recording.events.append(flap(6, "h1", "rail1"))
    (text,) = failures(recording)
    assert "flaps miscounted (h1 rail1 2; 1 injected on each)" in text


def test_a_fault_that_was_not_played_fails():
    recording = one_fault()
    recording.planned = 5
    assert failures(recording) == ["4 faults were not played"]
    recording.spans = []
    assert failures(recording)[0] == "no fault was played"


def test_cross_rail_paths_that_carry_nothing_fail():
    spans = [span(5, 9, ("h1", "rail0"), ("h2", "rail3"))]
    ranks = series(lambda _: 1.0)
    for rank in ranks:
        if rank.host == "h2":
            rank.rx[50:90, 0] = 0
    found = failures(run(None, spans, series=ranks))
    assert "the cross-rail path carried 0% (at least 5%) of the neighbours' payload" in found[-1]


def test_what_fails_is_red_in_its_cell():
    recording = slow(one_fault(), lambda t: 0.6 if t >= 12.2 else played(t))
    row = report.row(recording, analyse(recording).results[0])
    assert (row.back, row.after, row.bad) == ("–", "60%", {"after"})
    page = report.html(recording, analyse(recording), rail_bps=RAIL_BPS, version="0")
    assert "FAILED: fault 1: 60% (at least 75%) of full speed afterwards" in page
    assert '<td class="n bad">60%</td>' in page
