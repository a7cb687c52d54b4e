"""What a benchmark stores: when, and on a machine of whose."""

import json

import pytest

from bench.report import Lap, Row, markdown, remembered, stolen_s, store

STAT = "cpu  2234647 762 515441 903067 5013 0 55249 99235 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_stolen_time_is_read_of_all_cores():
    assert stolen_s(STAT) == pytest.approx(992.35)
    assert stolen_s("cpu 1 2 3 4\n") == 0.0, "an old kernel"


def test_a_lap_tells_seconds_and_share():
    told = Lap().meta()
    assert told["seconds"] >= 0
    assert told["stolen_percent"] >= 0


@pytest.mark.parametrize(("share", "said"), [(4.5, "4.5 % of them stolen"), (0.0, ""), (None, "")])
def test_the_table_says_what_was_stolen(share, said):
    part = {"quick": False, "date": "2026-01-01", "revision": "r", "kernel": "6", "cores": 2}
    if share is not None:
        part["stolen_percent"] = share
    last = markdown({"meta": {"parts": {"one": part}}, "rows": []}).splitlines()[-1]
    assert (said in last) if said else ("stolen" not in last)


def file(revision, row, part="a"):
    return {"meta": {"parts": {part: {"revision": revision}}}, "rows": [row | {"part": part}]}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"ok": True}, 2, "r1"),  # It got worse.
        ({"ok": False, "met_at": "r0"}, 2, "r0"),  # It is worse for longer.
        ({"ok": False}, 2, ""),  # It never was met.
        ({"ok": True}, 1, ""),  # It is met.
        ({"ok": False, "met_at": "r0"}, 1, ""),  # It is met again.
    ],
)
def test_a_row_that_is_not_met_says_where_it_last_was(before, now, said):
    row = Row("x", 1, now, "", part="a")
    assert remembered(file("r1", before | {"name": "x"}), [row], "a")[0].met_at == said
    quick = remembered(file("r1", before | {"name": "x"}), [row], "a", quick=True)
    assert quick[0].met_at == before.get("met_at", "") * (row.ok is False), "a full run is another"
    other = file("r1", before | {"name": "x"}, part="b")
    assert remembered(other, [row], "a")[0].met_at == "", "a row of another part"


def test_what_was_met_is_known_from_the_stored_file(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.report.RESULTS", tmp_path)
    for revision, got, said in (("r1", 1, ""), ("r2", 2, "r1"), ("r3", 3, "r1"), ("r4", 1, "")):
        monkeypatch.setattr("bench.report._revision", lambda revision=revision: revision)
        rows = store("x", [Row("y", 1, got, "")], quick=True, lap=Lap())
        assert [row.met_at for row in rows] == [said], revision
        told = markdown(json.loads((tmp_path / "x.json").read_text()))
        assert ("**no**, was at r1" in told) == bool(said)
