"""The report: self-contained, says what the analysis says, and escapes what it shows."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from demo_synthetic import RAIL_BPS, flap, job, link_event, ns, one_fault, span
from rich.console import Console

from lab.demo import report
from lab.demo.__main__ import LinePrinter
from lab.demo.analysis import analyse
from lab.demo.live import describe
from lab.demo.run import make_live
from lab.demo.story import chapters, topology
from lab.demo.view import draw, history_line, link_state, sparkline, squeeze
from telemetry.events import EventKind, LinkState


@pytest.fixture
def recording():
    return one_fault()


def live_of(failover=True):
    live = make_live(topology("t", 500_000_000), chapters(), 60, failover=failover)
    live.start_ns = ns(0)
    return live


def page(recording):
    return report.html(recording, analyse(recording), rail_bps=RAIL_BPS, version="0.1.0")


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    VOID = frozenset({"meta", "br"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_is_well_formed_and_needs_nothing_from_outside(recording):
    text = page(recording)
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    links = re.findall(r"(?:src|href)\s*=|url\(|@import|https?://[^\s\"'<]+", text)
    assert set(links) <= {"http://www.w3.org/2000/svg"}


def test_says_what_the_analysis_says(recording):
    text = page(recording)
    assert "0 errors, 0 corrupt bytes" in text
    assert "every fault detected, steered and on the timeline" in text
    row = report.row(recording, analyse(recording).results[0])
    assert (row.injected, row.detected, row.steered) == ("5.0 s", "2 ms", "10 ms")
    assert (row.dip, row.carried, row.back, row.resent) == ("0.3 s", "100%", "2.2 s", "600.0 kB")
    assert (row.rejoined, row.after, row.flaps) == ("0.0 s", "100%", "1 of 1")
    assert row.bad == frozenset()
    for cell in (row.detected, row.steered, row.dip, row.back, row.resent, row.where):
        assert cell in text


def test_what_limited_the_job_is_said(recording):
    analysis = analyse(recording)
    text = report.machine(recording, analysis, RAIL_BPS)
    assert text == (
        "Full speed 8.00 Gbit/s, 105% of what the links can carry; other processes took 0% of the"
        " CPU"
    )
    assert text in page(recording)
    slow = report.machine(recording, analysis, RAIL_BPS * 2 / report.GOODPUT)
    assert "took 0% of the CPU. The CPU is the limit" in slow
    speed = replace(analysis.speed, taken=analysis.speed.taken + 0.3)
    busy = report.machine(recording, replace(analysis, speed=speed), RAIL_BPS)
    assert "took 30% of the CPU: dips and speeds are theirs, too" in busy


def test_what_crosses_the_spines_is_said():
    recording = one_fault()
    recording.spans = [span(5, 9, ("h1", "rail0"), ("h2", "rail3"))]
    (note,) = report.notes(analyse(recording))
    assert "only h1 rail3 → spines → h2 rail0; it carried" in note
    assert note in page(recording)
    assert report.notes(analyse(one_fault())) == []


def test_text_from_outside_is_escaped(recording):
    recording.events.append(link_event(6, "h1", "rail0", "UP", "DOWN", "<script>alert(1)</script>"))
    recording.spans.append(span(15, 16, ("h2", "<b>"), title="<i>x</i>"))
    text = page(recording)
    assert "<script" not in text
    assert "<i>x" not in text
    assert "<b>" not in text.replace("<b>rail", "").replace("<b>h", "").replace("</span><b>", "")


def test_an_empty_run_still_gives_a_page(recording):
    recording.series, recording.spans, recording.events = [], [], []
    assert "no fault was played" in page(recording)


def test_write_leaves_page_and_json(tmp_path, recording):
    path = report.write(
        tmp_path / "a", recording, analyse(recording), rail_bps=RAIL_BPS, version="0"
    )
    assert path.read_text().startswith("<!doctype html>")
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["ok"] is True
    assert result["faults"][0]["rails"] == ["h1:rail1"]
    assert result["faults"][0]["back_s"] == pytest.approx(2.2, abs=0.1)


def test_the_timeline_leaves_out_what_came_before_and_the_daemons_own(recording):
    rows = report.timeline(recording)
    assert [row["kind"] for row in rows] == [
        "flap", "link_state", "steer", "link_state", "link_state", "steer",
    ]  # fmt: skip
    assert rows[0]["at"] == "5.002 s"
    assert rows[1]["text"] == "up → down: carrier lost"


def test_runs_of_flaps_are_one_line_with_their_sum(recording):
    recording.events += [flap(6 + i / 5, "h2", "rail2") for i in range(20)]
    recording.events += [flap(18, "h2", "rail2", count=2)]
    recording.events.append(link_event(7, "h2", "rail2", "UP", "SUSPECT", "probes missing"))
    recording.events.append(link_event(7.01, "h2", "rail2", "SUSPECT", "UP", "misses ended"))
    rows = report.timeline(recording, report.merged(recording.events))
    texts = [row["text"] for row in rows if row["host"] == "h2"]
    assert texts == ["carrier lost 20 times", "carrier lost 2 times"]
    assert len(report.timeline(recording)) == 6 + 21 + 2


def test_each_state_and_kind_can_be_described():
    for state in LinkState:
        assert describe(link_event(1, "h0", "rail0", "UP", state.name))
    assert {kind for kind in EventKind if kind.value} == set(EventKind)


def test_squeeze_keeps_the_newest_at_the_right():
    assert squeeze([1, 1, 2, 2, 3, 3], 6, 3) == [1, 2, 3]
    assert squeeze([9, 1, 1, 2, 2, 3, 3], 6, 3) == [1, 2, 3]
    assert squeeze([2, 2, 4], 6, 3) == [2, 3]
    assert squeeze([], 6, 3) == []


def test_sparkline():
    assert sparkline([0, 50, 100, 500], 100, 6) == "   ▄██"
    assert sparkline([], 100, 3) == "   "
    assert sparkline([1], 0, 3) == "   "


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (200, 50), (40, 10)])
def test_the_view_fits_its_terminal(size):
    live = live_of()
    recording = one_fault()
    live.start_ns = recording.start_ns
    live.now_s = 6.0
    live.take(recording.events, recording.job_events)
    for host in live.hosts:
        live.sample(host, 0.1, {rail: {"tx": 6_000_000, "rx": 1} for rail in live.rails})
    live.total.append(1e9)
    console = Console(width=size[0], height=size[1], force_terminal=True, record=True)
    with console.capture() as capture:
        console.print(draw(live, size[0], size[1], RAIL_BPS), height=size[1])
    text = re.sub(r"\x1b\[[0-9;]*m", "", capture.get())
    assert max(len(line) for line in text.splitlines()) <= size[0]
    assert len(text.splitlines()) <= size[1]
    if size[1] >= 24:
        assert "NIC unplugged" in text
        assert "480 Mb/s" in text
        assert "rail3" in text


def test_the_story_fits_and_leaves_out_what_does_not():
    assert len(chapters(60)) == 5
    assert [c.kind for c in chapters(15)] == ["carrier"]
    with pytest.raises(ValueError, match="too short"):
        chapters(10)
    for earlier, later in zip(chapters(), chapters()[1:], strict=False):
        assert earlier.over_at <= later.at


def path_event(at_s, host, link, peer, address, to):
    event = link_event(at_s, host, link, "UP", to, "not heard")
    return replace(event, kind=EventKind.PATH_STATE, peer=peer, data={"address": address})


def test_a_sound_link_says_whom_it_does_not_reach():
    live = live_of()
    live.take([link_event(1, "h0", "rail1", "UNKNOWN", "UP")], [])
    live.take([path_event(2, "h0", "rail1", "h1", "10.1.0.2", "DOWN")], [])
    assert link_state(live, ("h0", "rail1")).plain == "up, no h1"
    assert link_state(live, ("h0", "rail0")).plain == "unknown"
    # A cross-rail path is not the link's own.
    live.take([path_event(2, "h0", "rail1", "h2", "10.3.0.3", "DOWN")], [])
    assert link_state(live, ("h0", "rail1")).plain == "up, no h1"
    live.take([path_event(3, "h0", "rail1", "h1", "10.1.0.2", "PROBATION")], [])
    assert link_state(live, ("h0", "rail1")).plain == "up"
    assert link_state(live_of(failover=False), ("h0", "rail1")).plain == "no daemon"


def test_a_sparkline_is_marked_where_a_fault_held_the_rail():
    live = live_of()
    live.now_s = 12.0  # h1 rail1 was unplugged from 5 to 10
    for _ in range(120):
        live.sample("h1", 0.1, {rail: {"tx": 100_000, "rx": 1} for rail in live.rails})
    line = history_line(live, ("h1", "rail1"), 20, 1e6, "green")
    marked = [at for at in range(20) if line.get_style_at_offset(Console(), at).bgcolor is not None]
    assert line.plain == " " * 8 + "█" * 12
    assert marked == [13, 14, 15, 16, 17]  # a column is a second, the last one ends now
    clean = history_line(live, ("h1", "rail2"), 20, 1e6, "green")
    assert not any(clean.get_style_at_offset(Console(), at).bgcolor for at in range(20))


def test_bursts_are_counted_on_one_line():
    live = live_of()
    live.take([flap(15 + i / 5, "h2", "rail2") for i in range(20)], [])
    paths = [("h1", 15.01), ("h2", 15.02), ("h1", 15.03), ("h2", 15.04)]
    live.take([], [job(t, host, "rail2", "PATH_DOWN", detail=5) for host, t in paths])
    assert [line.text for line in live.log] == [
        "h2 rail2  carrier lost  × 20",
        "h1 rail2  plugin gives a path up (carrier)  × 2",
        "h2 rail2  plugin gives a path up (carrier)  × 2",
    ]
    live.take([flap(25, "h2", "rail2")], [])
    assert live.log[-1].text == "h2 rail2  carrier lost"


def test_without_a_terminal_a_line_is_printed_once_its_count_is_final():
    live = live_of()
    console = Console(width=120, record=True, file=io.StringIO())
    printer = LinePrinter(console, live)
    live.now_s = 15.1
    live.take([flap(15, "h2", "rail2")], [])
    live.add("over", "fault 2 is over")
    printer.show()
    assert console.export_text() == ""
    live.now_s = 15.9
    live.take([flap(15.8, "h2", "rail2")], [])
    printer.show()
    live.now_s = 17.0
    printer.show()
    assert [line.strip() for line in console.export_text().splitlines()] == [
        "15.00 s  h2 rail2  carrier lost  × 2",
        "15.10 s  fault 2 is over",
    ]
    live.take([flap(16.9, "h2", "rail2")], [])
    printer.show()
    printer.finish()
    assert "16.90 s  h2 rail2  carrier lost" in console.export_text()


def test_a_rank_that_did_not_end_clean_is_described(recording):
    rank = recording.ends[0]
    for changed, text in (
        ({"status": None, "end": None}, "did not end, without a word"),
        ({"status": -9, "end": None}, "ended by signal 9, without a word"),
        ({"status": 1, "error": {"code": 6, "text": "gone"}}, "exit status 1: gone"),
        ({"status": 3}, "exit status 3, 0 errors, 0 corrupt bytes"),
    ):
        assert report.how_it_ended(replace(rank, **changed)) == text
