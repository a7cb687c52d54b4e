"""The pure parts of the plugin benchmark: rounds, ratios, iperf3's JSON, merged results."""

import json
from pathlib import Path

import pytest
import typer

from bench.__main__ import chosen, run_parts
from bench.outage import Outages, others_share
from bench.plugin import (
    PARTS,
    comms,
    congestion,
    direct,
    iperf,
    lossy,
    quiet,
    shaped,
    slow,
    stalls,
)
from bench.plugin.pair import Small, Stream
from bench.plugin.rounds import alternate, beside, difference, interval, ratio, spread
from bench.report import Row, markdown, merged
from lab.demo.record import CpuSample


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (0, 0)), (4, (0, 3)), (8, (1, 6)), (31, (10, 20)), (100, (41, 58))]
)
def test_interval_of_a_median_is_that_of_the_sign_test(count, expected):
    # Tables of the sign test, 5 % each side.
    assert interval([*reversed(range(count))]) == expected


def test_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_every_round_begins_with_another_way():
    called = []
    taken = alternate(4, {name: lambda n=name: called.append(n) or len(called) for name in "abc"})
    assert "".join(called) == "abcbcacababc"
    assert taken == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}


@pytest.mark.parametrize(("rounds", "ways"), [(0, {"a": int}), (3, {})])
def test_nothing_to_measure_is_an_error(rounds, ways):
    with pytest.raises(ValueError, match="nothing to measure"):
        alternate(rounds, ways)


def test_a_ratio_is_the_median_of_the_rounds_own():
    # The second round was disturbed, both sides of it; the third only on one.
    assert ratio([9, 4.5, 2], [10, 5, 10]) == 0.9
    assert difference([5, 9, 6], [4, 8, 6]) == 1


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_rounds_that_do_not_pair_are_an_error(ours, theirs):
    with pytest.raises(ValueError, match=r"rounds beside|measured 0"):
        ratio(ours, theirs)


def test_notes_tell_the_spread():
    assert spread([3.0, 1.0, 2.0]) == "2 (1 to 3)"
    text = beside({"fabric": [1.0, 2.0], "iperf3": [3.0, 3.0]}, "Gbit/s")
    assert text == "fabric 1.5 (1 to 2); iperf3 3 (3 to 3) Gbit/s; 2 rounds"


def test_iperf_result():
    end = {"sum_sent": {"bytes": 9}, "sum_received": {"bytes": 2.5e9, "seconds": 2.0}}
    end["cpu_utilization_percent"] = {"host_total": 40.0, "remote_total": 60.0, "host_user": 5}
    got = iperf.parse(json.dumps({"start": {}, "end": end}))
    assert got.gbps == pytest.approx(10)
    assert got.cpu_s == pytest.approx(2)


def received(count, seconds):
    used = {"host_total": 1.0, "remote_total": 1.0}
    end = {"sum_received": {"bytes": count, "seconds": seconds}, "cpu_utilization_percent": used}
    return json.dumps({"end": end})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("[]", "no JSON object"),
        ('{"error": "unable to connect"}', "unable to connect"),
        ('{"end": {}}', "lacks received bytes"),
        (received(0, 1), "received nothing"),
        (received("x", 1), "lacks received bytes"),
        (received(1, 1).replace("remote_total", "x"), "lacks received bytes or CPU"),
    ],
)
def test_iperf_that_failed_says_why(text, says):
    with pytest.raises(iperf.IperfError, match=says):
        iperf.parse(text)


def test_bulk_rows_compare_with_each_peer():
    taken = {
        "iperf3": [Stream(20, 0.4), Stream(10, 0.8)],
        "plain": [Stream(20, 0.4), Stream(10, 0.8)],
        "fabric": [Stream(19, 0.4), Stream(9.5, 0.8)],
        "failover off": [Stream(19, 0.4), Stream(9.5, 0.8)],
        "blocking": [Stream(15, 0.5), Stream(8, 1.0)],
        "plain, wide": [Stream(16, 0.4), Stream(8, 0.8)],
        "fabric, wide": [Stream(16, 0.4), Stream(8, 0.8)],
    }
    iperf_row, plain_row, cost, wide, wide_iperf, cpu = direct.bulk_rows(taken)
    assert (iperf_row.got, iperf_row.ok) == (0.95, True)
    assert (plain_row.got, plain_row.ok) == (0.95, False)
    assert (cost.got, cost.ok) == (1, True)
    assert (cpu.got, cpu.ok) == (1.25, False)
    assert (wide.got, wide.ok) == (1, True)
    assert (wide_iperf.got, wide_iperf.ok) == (0.8, False)


def test_pingpong_rows():
    taken = {
        "bare TCP": [Small(8, 20)],
        "fabric": [Small(10, 30, 250_000)],
        "failover off": [Small(9.5, 30, 500_000)],
    }
    p50, p99, half, spacing = direct.pingpong_rows(taken)
    assert (p50.got, p50.ok) == (1.25, True)
    assert (p99.got, p99.ok) == (1.5, False)
    assert (half.got, half.ok) == (0.5, True)
    assert (spacing.got, spacing.ok) == (2, False)


def test_line_rows():
    taken = {"iperf3": [Stream(1.0, 0.5)], "fabric": [Stream(0.98, 0.6)]}
    goodput, cpu = shaped.line_rows("1 Gbit/s", taken)
    assert (goodput.got, goodput.ok) == (0.98, True)
    assert (cpu.got, cpu.ok) == (1.2, False)


def test_stall_rows():
    carrier = Outages([5.0, 40.0, 9.0], 2.0, 0)
    rows = stalls.stalls_rows(carrier, Outages([100.0, 240.0], 2.0, 3))
    assert [(row.got, row.ok) for row in rows] == [(9, True), (40, False), (240, True)]
    assert rows[0].note == "3 faults, p50 9.0 ms, max 40.0 ms; 2.0 communicators each"
    assert rows[2].note.endswith("; 3 events lost")


def test_stalls_tell_what_others_took():
    def sample(total, idle, own):
        return CpuSample(0, total, idle, own)

    assert others_share(sample(10, 4, 3), sample(14, 5, 5)) == pytest.approx(0.25)
    assert others_share(sample(10, 4, 3), sample(14, 5, 7)) == 0
    assert others_share(sample(10, 4, 3), sample(10, 4, 3)) == 0
    note = Outages([5.0, 40.0], 2.0, 0, [0.4, 0.1]).note()
    assert note.endswith("others had up to 40% of the CPU (10% at the max)")


def test_comms_rows_take_the_worse_kind_of_traffic():
    def figures(sender, receiver):
        return comms.Figures(1.5, 2.5, {"sender": sender, "receiver": receiver})

    taken = {"64 KB": [figures(100, 300)], "4 KB": [figures(200, 250)]}
    connected, paths, sender, receiver = comms.comms_rows(256, taken)
    assert (connected.got, connected.ok) == (1.5, True)
    assert (paths.got, paths.ok) == (2.5, False)
    assert (sender.got, sender.ok) == (200, True)
    assert (receiver.got, receiver.ok) == (300, False)


def test_weights_that_change_too_often_are_seen():
    second = 10**9
    assert congestion.most_in_a_second([]) == 0
    assert congestion.most_in_a_second([0, second, 2 * second]) == 1
    assert congestion.most_in_a_second([0, second, second // 2 + second, 3 * second]) == 2


def test_reversals():
    assert congestion.reversals([]) == 0
    assert congestion.reversals([100, 80, 60, 60, 40]) == 0
    assert congestion.reversals([100, 50, 100, 100, 50]) == 2


def test_congestion_rows():
    path = ("h0", 1, 1)
    following = congestion.Taken(0.9, {path: [(0, 50), (10**8, 100), (2 * 10**9, 50)]})
    taken = {"following": [following], "fixed": [congestion.Taken(0.6, {})]}
    gain, steady = congestion.congestion_rows(taken)
    assert (gain.got, gain.ok) == (pytest.approx(1.5), True)
    assert (steady.got, steady.ok) == (2, False)
    assert "turned about 1 times" in steady.note


def stat(tmp_path: Path, user: int, system: int) -> Path:
    path = tmp_path / "stat"
    path.write_text(f"cpu  {user} 0 {system} 9999 1 2 3 4 0 0\ncpu0 1 2 3\n")
    return path


def test_only_processes_count_as_disturbance(tmp_path):
    text = stat(tmp_path, 300, 200).read_text()
    assert quiet.process_seconds(text) == pytest.approx(500 * quiet._TICK_S)


def test_a_disturbed_measurement_is_taken_again(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "PAUSE_S", 0)
    path = stat(tmp_path, 0, 0)
    ticks = iter([10**6, 10**6])  # of all processes, at the end of each try
    results = iter(["disturbed", "quiet"])

    def work():
        stat(tmp_path, next(ticks), 0)
        return next(results)

    watch = quiet.Quiet(stat=path)
    assert watch.measure(work) == "quiet"
    assert watch.repeated == 1
    assert watch.others[0] <= quiet.LIMIT
    row = watch.noted([Row("x", 1, 1, "", note="a")])[0]
    assert row.note == "a; others had up to 0% of the CPU (1 disturbed tries left out)"


def test_the_least_disturbed_counts_when_it_never_gets_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "PAUSE_S", 0)
    path = stat(tmp_path, 0, 0)
    total = 0
    more = iter([30_000, 10_000, 20_000, 40_000])
    names = iter("abcd")

    def work():
        nonlocal total
        total += next(more)
        stat(tmp_path, total, 0)
        return next(names)

    watch = quiet.Quiet(stat=path)
    # How long `work` took differs a little, what others had differs by factors.
    monkeypatch.setattr(quiet.time, "monotonic", iter(range(0, 800, 100)).__next__)
    assert watch.measure(work) == "b"
    assert watch.others[0] > quiet.LIMIT


def test_parts_by_name():
    assert chosen("plugin", PARTS, "") == list(PARTS)
    assert chosen("plugin", PARTS, "pingpong, bulk") == ["bulk", "pingpong"]
    with pytest.raises(typer.BadParameter, match="has no 'x': its parts are line"):
        chosen("plugin", PARTS, "bulk,x")
    with pytest.raises(typer.BadParameter, match="it has no parts"):
        chosen("failover", {}, "bulk")


def test_a_part_that_fails_takes_no_result_away(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.report.RESULTS", tmp_path)

    def broken(quick):
        raise RuntimeError("no such thing")

    def fine(quick):
        return [Row("one", 1, 1 + quick, "", samples={"x": [1.23456]})]

    parts = {"a": fine, "b": broken, "c": fine}
    rows, failed = run_parts("name", parts, ["a", "b", "c"], quick=True)
    assert [(r.part, r.got) for r in rows] == [("a", 2), ("c", 2)]
    assert failed == ["b"]
    stored = json.loads((tmp_path / "name.json").read_text())
    assert [row["part"] for row in stored["rows"]] == ["a", "c"]
    assert stored["rows"][0]["samples"] == {"x": [1.235]}
    assert stored["rows"][0]["ok"] is False
    assert list(stored["meta"]["parts"]) == ["a", "c"]
    assert stored["meta"]["parts"]["a"]["quick"] is True


def body(date, *rows):
    meta = {"bench": "x", "quick": False, "date": date, "revision": "r", "kernel": "k", "cores": 2}
    return {"meta": meta, "rows": list(rows)}


def test_parts_not_run_again_keep_their_rows_and_dates():
    order = ["a", "b"]
    empty = {"meta": {}, "rows": []}
    one = merged(empty, body("monday", {"name": "y", "part": "b"}), "b", order)
    two = merged(one, body("tuesday", {"name": "x", "part": "a"}), "a", order)
    new = merged(two, body("friday", {"name": "z", "part": "a"}), "a", order)
    assert [row["name"] for row in new["rows"]] == ["z", "y"]
    assert {part: told["date"] for part, told in new["meta"]["parts"].items()} == {
        "a": "friday",
        "b": "monday",
    }
    # A part that is no more.
    assert merged(new, body("later"), "c", ["b", "c"])["rows"] == [{"name": "y", "part": "b"}]


def test_results_as_markdown():
    row = {
        "name": "x",
        "part": "a",
        "asked": 0.9,
        "got": 0.8123,
        "unit": "",
        "better": "higher",
        "ok": False,
    }
    told = row | {"name": "y", "asked": None, "got": 12, "unit": "ms", "better": "lower"}
    told["ok"] = None
    new = body("2026-01-02T03:04", row | {"note": "n"}, told | {"note": ""})
    lines = markdown(merged({"meta": {}, "rows": []}, new, "a", ["a"])).splitlines()
    assert lines[2] == "| x | ≥ 0.9 | 0.812 | **no** | n |"
    assert lines[3] == "| y |  | 12 ms |  |  |"
    assert lines[4] == ""
    assert lines[5] == "a: 2026-01-02, revision r, Linux k, 2 cores."


def test_a_slow_rail_is_compared_with_the_rail_removed():
    gbps = {"sound": [1.4], "removed": [1.0], "quarter": [1.02], "tenth": [0.9]}
    quarter, tenth = slow.slow_rows(gbps)
    assert (quarter.got, quarter.ok) == (1.02, True)
    assert (tenth.got, tenth.ok) == (0.9, False)
    assert "removed" in tenth.note


def test_a_lossy_rail_is_compared_with_the_others_alone_and_with_no_daemon():
    gbps = {"four rails": [1.4], "three rails": [1.0], "daemon": [0.96], "no daemon": [0.98]}
    alone, without = lossy.lossy_rows(3.0, gbps, 0.02)
    assert (alone.got, alone.asked, alone.ok) == (0.96, 0.95, True)
    assert (round(without.got, 3), without.ok) == (0.98, False)
    assert "loses 3 %" in alone.name
    assert "others had up to 2% of the CPU" in alone.note
    assert alone.samples == gbps
