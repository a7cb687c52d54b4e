"""What the demo reads: the ranks' rows as they grow and the ground truth."""

import json

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
    span = two.span(truth)
    assert (span.start_ns, span.end_ns, span.flaps) == (500, 605, 1)
    assert hole.span(truth) is None
    assert two.span(truth[:-1]) is None  # not over
