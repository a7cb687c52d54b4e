"""What the demo reads: the ranks' rows as they grow and the ground truth."""

import json
import os
import time

import pytest

from lab.demo.cpu import CpuWatch, machine_times, process_time
from lab.demo.job import INTERVAL_MS, RankReader
from lab.demo.story import chapters

MS = 10**6


def row(t_ms, size, **rails):
    row = {"type": "sample", "t_ns": t_ms * MS, "bytes": size, "rails": rails}
    return json.dumps(row) + "\n"


def test_rows_are_read_as_they_grow(tmp_path):
    path = tmp_path / "rank0.jsonl"
    reader = RankReader("h0", path)
    assert reader.poll() == []
    first = row(1000, 0) + row(1100, 5, rail0={"tx": 7, "rx": 9}) + row(1200, 5)
    path.write_text('{"type": "start", "t_ns": 1}\n' + first[:-10])
    assert [r["t_ns"] for r in reader.poll()] == [1100 * MS]  # what moved nothing is set-up
    assert reader.moving
    with path.open("a") as file:
        file.write(first[-10:] + '{"type": "error", "t_ns": 5, "text": "a"}\n{"type": "error"}\n')
        file.write('{"type": "end", "errors": 1}\n')
    assert [r["t_ns"] for r in reader.poll()] == [1200 * MS]
    assert reader.error_row["text"] == "a"
    assert reader.end_row["errors"] == 1
    series = reader.series(("rail0", "rail1"))
    assert series.t_ns.tolist() == [(1100 - INTERVAL_MS) * MS, 1100 * MS, 1200 * MS]
    assert series.rx.tolist() == [[9, 0], [0, 0]]
    assert series.tx.tolist() == [[7, 0], [0, 0]]


def test_a_rank_without_samples_gives_an_empty_series(tmp_path):
    series = RankReader("h0", tmp_path / "none").series(("rail0",))
    assert series.rx.shape == (0, 1)
    assert series.t_ns.shape == (1,)


class Played:
    def __init__(self, name):
        self.id = name


def rows(name, *phases):
    return [{"id": name, "t_ns": t, "phase": phase, "fault": "x"} for phase, t in phases]


def test_spans_come_from_the_ground_truth():
    unplug, flap, hole, two, _ = chapters()
    unplug.faults, flap.faults = [Played("a")], [Played("b")]
    two.faults = [Played("c"), Played("d")]
    truth = [
        *rows("a", ("start", 100), ("end", 200)),
        *rows("b", ("start", 300), ("down", 301), ("up", 302), ("down", 303), ("up", 304)),
        *rows("b", ("end", 400)),
        *rows("c", ("start", 500), ("end", 600)),
        *rows("d", ("start", 502), ("end", 605)),
    ]
    span = unplug.span(truth)
    assert (span.start_ns, span.end_ns, span.flaps) == (100, 200, 1)
    assert span.rails == (("h1", "rail1"),)
    span = flap.span(truth)
    assert (span.start_ns, span.end_ns, span.flaps) == (301, 304, 2)  # as injected, not as asked
    assert span.returns_within_s == 11
    span = two.span(truth)
    assert span.returns_within_s == 3
    assert (span.start_ns, span.end_ns, span.flaps) == (500, 605, 1)
    assert hole.span(truth) is None
    assert two.span(truth[:-1]) is None  # not over


def test_cpu_times_are_read_from_proc():
    hz = os.sysconf("SC_CLK_TCK")
    stat = "cpu  100 20 30 400 50 6 7 8 99 99\ncpu0 1 1 1 1\n"
    total, idle = machine_times(stat)
    assert (total * hz, idle * hz) == (pytest.approx(621), pytest.approx(450))  # guests are in user
    line = "12 (a b) c) S 1 12 12 0 -1 4194560 1 1 0 0 150 50 900 900 20 0 1 0 4242 9 9"
    start, seconds = process_time(line)
    assert (start, seconds * hz) == (4242, pytest.approx(200))


def test_the_demos_own_cpu_time_is_told_from_the_machines(tmp_path):
    watch = CpuWatch()
    before = watch.sample([])
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    after = watch.sample([2**22 + 1])  # no such process
    assert after.own - before.own == pytest.approx(0.2, abs=0.1)
    assert after.total - before.total >= (after.t_ns - before.t_ns) / 1e9 - 0.05
    assert after.idle >= before.idle


def test_a_process_that_ended_keeps_what_it_used(tmp_path):
    hz = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text("cpu  1 1 1 1 1 1 1 1 0 0\n")
    process = tmp_path / "77"
    process.mkdir()
    (process / "comm").write_text("rank\n")
    text = "77 (x) S 1 1 1 0 -1 0 1 1 0 0 {} 0 0 0 20 0 1 0 {} 9 9"
    watch = CpuWatch(tmp_path)
    seen = []
    for used, start in ((100, 5), (300, 5), (None, 5), (40, 6)):
        if used is None:
            (process / "stat").unlink()
        else:
            (process / "stat").write_text(text.format(used, start))
        seen.append(watch.sample([77]).own * hz)
    assert seen == [pytest.approx(x) for x in (100, 300, 300, 340)]
