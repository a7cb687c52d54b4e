"""The report: self-contained, says what the analysis says, and escapes what it shows."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from demo_synthetic import RAIL_BPS, flap, link_event, one_fault, span
from rich.console import Console

from lab.demo import report
from lab.demo.analysis import analyse
from lab.demo.live import describe
from lab.demo.run import make_live
from lab.demo.story import chapters
from lab.demo.view import draw, sparkline, squeeze
from telemetry.events import EventKind, LinkState


@pytest.fixture
def recording():
    return one_fault()


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
    assert "every fault detected and steered" in text
    row = report.row(recording, analyse(recording).results[0])
    assert (row.injected, row.detected, row.steered) == ("5.0 s", "2 ms", "10 ms")
    assert (row.dip, row.carried, row.back, row.resent) == ("0.3 s", "100%", "2.2 s", "600.0 kB")
    assert row.flaps == "1 of 1"
    for cell in (row.detected, row.steered, row.dip, row.back, row.resent, row.where):
        assert cell in text


def test_the_worst_is_said_first(recording):
    recording.ends[0] = replace(recording.ends[0], status=1)
    assert report.verdict(analyse(recording)) == "a rank did not end clean"
    recording = one_fault()
    recording.events, recording.job_events = [], []
    assert report.verdict(analyse(recording)) == "fault 1 was not detected"
    recording = one_fault()
    recording.spans = []
    assert report.verdict(analyse(recording)) == "no fault was played"


def test_a_run_that_the_cpu_limited_says_so(recording):
    analysis = analyse(recording)
    assert report.caveat(recording, analysis, RAIL_BPS) == ""
    assert "with care" not in page(recording)
    assert "50% of what the links can carry" in report.caveat(
        recording, analysis, RAIL_BPS * 2 / report.GOODPUT
    )
    noisy = replace(analysis, noise=0.4)
    assert "40% of the time outside faults" in report.caveat(recording, noisy, RAIL_BPS)


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
    live = make_live(chapters(), 60, failover=True)
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
        assert "480 Mbit/s" in text
        assert "rail3" in text


def test_the_story_fits_and_leaves_out_what_does_not():
    assert len(chapters(60)) == 5
    assert [c.kind for c in chapters(15)] == ["carrier"]
    with pytest.raises(ValueError, match="too short"):
        chapters(10)
    for earlier, later in zip(chapters(), chapters()[1:], strict=False):
        assert earlier.over_at <= later.at
