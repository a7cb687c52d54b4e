"""What is said of fabric time to operators and to Prometheus."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from clocksync.page.clock_page import NOTHING, ClockPage, Line, State
from clocksync.page.tai_page import Source, TaiLine, TaiPage
from fabricd.cli import app
from fabricd.clock import status_reader
from fabricd.probes import layout as lay
from lab.inputs import ring_file
from telemetry.snapshot import ClockSnapshot, PtpSnapshot, TaiSnapshot

SAID = {
    "state": "locked", "host": 7, "reference": 0xABCDEF, "is_reference": False, "epoch": 3,
    "skew": 2.5e-8, "offset_ns": -1.5, "root_delay_ns": 8300.0,
    "bound_ns": 812.5, "residual_ns": 3.5, "slope": -1.25e-6, "neighbours": 4, "joins": 2,
    "lost": 1, "takeovers": 5, "refused_messages": 6, "fits": 99,
    "moves": 3,
    "paths": [
        {"netdev": "rail0", "peer": "10.0.0.2", "host": 0x12, "steps": 0, "offset_ns": -36464360.5,
         "slope": 2.5e-6, "half_rtt_ns": 2070.5, "spread_ns": 2.9, "kept": [0.5, 0.75],
         "window_s": 2.0, "surplus_ns": 1.5, "judged": "watching", "source_port": 0,
         "out_ns": 2072.0, "back_ns": 2069.0, "way_bound_ns": 1600.0, "moves": 0},
        {"netdev": "rail0", "peer": "10.0.0.3", "host": 0x13, "steps": 0, "offset_ns": 5.0,
         "slope": 2.5e-6, "half_rtt_ns": 3000.0, "spread_ns": 2.9, "kept": [0.5, 0.75],
         "window_s": 2.0, "surplus_ns": -450.0, "judged": "moved", "source_port": 61001,
         "out_ns": 2550.0, "back_ns": 3450.0, "way_bound_ns": 1600.0, "moves": 2},
        {"netdev": "rail1", "peer": "10.1.0.2", "host": 0x12, "steps": 0, "offset_ns": None,
         "slope": None, "half_rtt_ns": None, "spread_ns": None, "kept": None, "window_s": None,
         "surplus_ns": None},
    ],
}  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "clock.json").write_text(json.dumps(SAID))
    page = ClockPage(tmp_path)
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    page.write(
        Line(raw, 1_800_000_000 * 10**9, 0.0, 812.5, 0.0, 0.0, 10**11, 10**12, State.LOCKED,
             0xABCDEF, 3)
    )  # fmt: skip
    page.close()
    return tmp_path


def test_the_metrics_have_page_and_document(run_dir):
    shot = status_reader.snapshot(run_dir)
    assert shot.bound_s == pytest.approx(812.5e-9)
    assert shot == ClockSnapshot(
        up=True, state=1, bound_s=shot.bound_s, residual_s=3.5e-9, frequency=-1.25e-6, paths=4,
        offset_s=-1.5e-9, skew=2.5e-8, root_delay_s=pytest.approx(8.3e-6),
        reference="00abcdef", references_lost=1, joins=2, takeovers=5, refused_messages=6,
        tai=TaiSnapshot(state=0), asymmetric=1,
        surplus_s=450e-9, moves=3,
        way_min_s={"tx": 2072e-9, "rx": 2069e-9}, way_median_s={"tx": 2311e-9, "rx": 2759.5e-9},
    )  # fmt: skip


def test_a_document_of_the_release_before_is_read_by_its_former_key(run_dir):
    former = {key: value for key, value in SAID.items() if key != "refused_messages"}
    (run_dir / "clock.json").write_text(json.dumps(former | {"refused_words": 6}))
    assert status_reader.snapshot(run_dir).refused_messages == 6
    assert status_reader.read(run_dir)["refused_messages"] == 6


def test_a_service_that_stopped_is_not_up(run_dir):
    os.utime(run_dir / "clock.json", (time.time() - 60, time.time() - 60))
    assert not status_reader.snapshot(run_dir).up


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"paths": 3}', json.dumps(SAID | {"lost": "x"}),
             json.dumps(SAID | {"slope": float("nan")}), json.dumps(SAID | {"joins": True}),
             json.dumps(SAID | {"skew": "x"}), "\0",
             json.dumps(SAID | {"slope": 10**400}), "[" * 100_000,
             json.dumps(SAID | {"paths": [3]}), json.dumps(SAID | {"paths": [{"out_ns": "x"}]})],
)  # fmt: skip
def test_what_is_no_document_is_nothing(run_dir, text):
    if text is None:
        (run_dir / "clock.json").unlink()
    else:
        (run_dir / "clock.json").write_text(text)
    assert status_reader.snapshot(run_dir) == ClockSnapshot()
    shown = CliRunner().invoke(app, ["clock", "--run-dir", str(run_dir)])
    assert shown.exit_code == 1
    assert "Traceback" not in shown.output


@pytest.mark.parametrize(
    ("flags", "word", "text"),
    [(lay.HEADER_RUNNING | lay.HEADER_SYNCHRONIZED, "fabric", "fabric time"),
     (lay.HEADER_RUNNING, "wall", "the wall clock"),
     (lay.HEADER_SYNCHRONIZED, "none", "no prober"), (None, "none", "no prober")],
)  # fmt: skip
def test_by_which_time_probes_go(run_dir, flags, word, text):
    if flags is not None:
        ring = ring_file.fresh_ring()
        ring_file.put(ring, lay.RING_HEADER, 0, flags=flags)
        (run_dir / "prober").mkdir()
        (run_dir / "prober" / "ring").write_bytes(ring)
    words = ["clock", "--run-dir", str(run_dir)]
    shown = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(shown.output)["probes"] == word
    line = CliRunner().invoke(app, words).output.split("Probes go by", 1)[1].splitlines()[0]
    assert text in line


def test_without_a_page_the_state_is_unsynchronized(run_dir):
    (run_dir / "clock").write_bytes(b"x")
    shot = status_reader.snapshot(run_dir)
    assert (shot.up, shot.state, shot.bound_s) == (True, 0, None)
    shown = CliRunner().invoke(app, ["clock", "--run-dir", str(run_dir)])
    assert shown.exit_code == 0
    assert "unsynced" in shown.output


def test_an_operator_reads_it_in_chronys_words(run_dir):
    shown = CliRunner().invoke(app, ["clock", "--run-dir", str(run_dir)]).output
    assert "Reference ID    : host 00abcdef" in shown
    assert "State           : locked" in shown
    assert "Frequency       : -1.250000 ppm" in shown
    assert "rail0 → 10.0.0.2" in shown
    assert "-36.464 ms" in shown
    assert "moved, port 61001" in shown
    assert "50/75 %" not in shown
    wide = CliRunner().invoke(app, ["clock", "-o", "wide", "--run-dir", str(run_dir)]).output
    assert "50/75 %" in wide
    ways = (
        CliRunner()
        .invoke(app, ["clock", "--paths", "-o", "wide", "--run-dir", str(run_dir)])
        .output
    )
    row = next(line for line in ways.splitlines() if "10.0.0.3" in line)
    assert row.split()[5:] == [
        "2.550", "us", "3.450", "us", "1.600", "us", "-450.0", "ns", "61001", "2", "moved,",
        "port", "61001",
    ]  # fmt: skip
    said = json.loads(
        CliRunner().invoke(app, ["clock", "--json", "--run-dir", str(run_dir)]).output
    )
    assert said["page"]["state"] == "locked"


def waiting(run_dir, *words):
    return CliRunner().invoke(app, ["clock", "--run-dir", str(run_dir), "--wait", *words])


def test_a_job_waits_for_fabric_time(run_dir):
    done = waiting(run_dir, "0s")
    assert done.exit_code == 0
    assert "Reference ID    : host 00abcdef" in done.output, "and shows it"
    assert waiting(run_dir, "0s", "--max-bound", "0.9").exit_code == 0
    done = waiting(run_dir, "0s", "--max-bound", "0.8")
    assert done.exit_code == 1
    assert "after 0 s: locked, but within 812." in done.output
    page = ClockPage(run_dir)
    held = replace(page.last, state=State.HOLDOVER)
    page.write(held)
    done = waiting(run_dir, "0s")
    assert (done.exit_code, "holdover, within 812." in done.output) == (1, True)
    page.write(NOTHING)
    done = waiting(run_dir, "0s")
    assert (done.exit_code, "unsynchronized" in done.output) == (1, True)
    later = threading.Timer(0.3, lambda: page.write(replace(held, state=State.LOCKED)))
    later.start()
    assert waiting(run_dir, "60s").exit_code == 0
    later.join()
    page.close()


def test_what_a_job_cannot_wait_for(run_dir, tmp_path):
    assert waiting(run_dir, "soon").exit_code == 2
    for bound in ("-1", "nan", "inf", "x"):
        assert waiting(run_dir, "1s", "--max-bound", bound).exit_code == 2
    asked = ["clock", "--run-dir", str(run_dir), "--max-bound", "1"]
    assert CliRunner().invoke(app, asked).exit_code == 2
    done = waiting(tmp_path / "nowhere", "0s")
    assert done.exit_code == 1
    assert "No such file" in done.output


def test_whose_stamps_and_which_nics_clocks(run_dir):
    paths = [SAID["paths"][0] | {"stamps": ["hardware", "software"]}, SAID["paths"][1]]
    known = {
        "phc": 0, "way": "extended", "why": None, "steps": 1, "adjusted": 2, "too_slow": 0,
        "half_ns": 312.4, "spread_ns": 1.6, "slope": -15e-6,
    }  # fmt: skip
    none = dict.fromkeys(("half_ns", "spread_ns", "slope"))
    phcs = [
        known, known | none | {"phc": 1, "too_slow": 30},
        known | none | {"phc": 2, "way": None, "why": "/dev/ptp2: Permission denied"},
    ]  # fmt: skip
    (run_dir / "clock.json").write_text(json.dumps(SAID | {"paths": paths, "phcs": phcs}))
    shown = CliRunner().invoke(app, ["clock", "-o", "wide", "--run-dir", str(run_dir)]).output
    assert "ha/so" in shown
    assert "so/so" in shown, "of a service before it said so"
    assert (
        "/dev/ptp0 (extended): -15.0000 ppm of the raw clock, spread 1.6 ns, within 312.4 ns; set "
        "1 times, adjusted 2 times by others" in shown
    )
    assert "/dev/ptp1 (extended): no line over the raw clock yet" in shown
    assert "30 readings too slow" in shown
    assert "/dev/ptp2: off: /dev/ptp2: Permission denied" in shown


PTP = {
    "why": "", "changes": 1, "refused": {"source": 3, "malformed": 2}, "unstamped": 0,
    "wall_steps": 0, "tracking": True, "root_delay_ns": 11_000.0, "root_dispersion_ns": 3_500.0,
    "masters": [
        {"address": "10.0.0.9", "best": True, "alive": True, "timing": True, "grants": {},
         "denied": 1, "lost": 2, "timeouts": 4, "steps": 1, "identity": "00000000000abcde",
         "clock_class": 6, "steps_removed": 1, "half_rtt_ns": 5_500.0, "spread_ns": 90.0,
         "bound_ns": 9_000.0},
        {"address": "fd00::9", "best": False, "alive": False, "timing": False, "grants": {},
         "denied": 0, "lost": 0, "timeouts": 0, "steps": 0},
    ],
}  # fmt: skip


@pytest.fixture
def edge_dir(run_dir):
    """Of a host with two PTP masters, of which one is silent."""
    (run_dir / "clock.json").write_text(json.dumps(SAID | {"ptp": PTP, "tai": {"steps": 2}}))
    page = TaiPage(run_dir)
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    line = Line(raw, 1_800_000_037 * 10**9, 0.0, 9000.0, 0.0, 0.0, 10**11, 10**12, State.LOCKED,
                7, 3)  # fmt: skip
    page.write(TaiLine(line, Source(0xABCDE, 6, 0x21, 1, 37, True, 0)))
    page.close()
    return run_dir


def test_the_metrics_have_tai_and_the_masters(edge_dir):
    shot = status_reader.snapshot(edge_dir)
    assert shot.tai == TaiSnapshot(1, 9000 / 1e9, 37, True, 1, 6, 2)
    assert shot.ptp == PtpSnapshot(
        tracking=True, masters=1, root_delay_s=11e-6, root_dispersion_s=3.5e-6, changes=1, lost=2,
        steps=1, denied=1, refused=5,
    )  # fmt: skip


def test_an_operator_reads_whose_tai_it_is(edge_dir):
    shown = CliRunner().invoke(app, ["clock", "--run-dir", str(edge_dir)]).output
    for line in (
        "TAI bound       : 9.000 us", "UTC offset      : 37 s",
        "Grandmaster     : 00000000000abcde, class 6, this host's", "Traceable       : yes",
        "Steps removed   : 1", "TAI root delay  : 11.000 us", "TAI dispersion  : 3.500 us",
    ):  # fmt: skip
        assert line in shown
    assert "*10.0.0.9" in shown
    assert "silent" in shown
    said = CliRunner().invoke(app, ["clock", "--json", "--run-dir", str(edge_dir)]).output
    assert json.loads(said)["tai"]["utc_offset_s"] == 37


@pytest.mark.parametrize(
    "ptp",
    [
        3,
        [],
        {},
        {"masters": [3], "refused": []},
        {"masters": {}},
        {"root_delay_ns": 10**400, "changes": 10**400},
    ],
)
def test_a_document_that_makes_no_sense_gives_no_wrong_numbers(edge_dir, ptp):
    (edge_dir / "clock.json").write_text(json.dumps(SAID | {"ptp": ptp, "tai": 5}))
    shot = status_reader.snapshot(edge_dir)
    assert shot.tai.steps == 0
    assert shot.ptp in (None, PtpSnapshot())


def test_the_daemon_does_without_numpy():
    code = "import fabricd.clock.status_reader, sys; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
