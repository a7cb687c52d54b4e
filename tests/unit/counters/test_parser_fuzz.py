"""Damaged inputs by the thousand in each run, ten million for each parser nightly."""

import json
import random

import pytest

from lab.fuzzbytes import PARSERS, damaged, of_bytes
from lab.parserfuzz import TARGETS, Result, added, fuzz, keep


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_inputs(target):
    got = fuzz(target, 2_000)
    assert got.finding == ""
    assert got.inputs == 2_000
    # Some inputs are still whole enough to be read, some are not; a sysfs file is only skipped.
    assert 0 < got.refused < 2_000 or target == "sysfs"


def test_a_parser_that_crashes_is_found(monkeypatch):
    def crashes(data):
        return data[3]

    monkeypatch.setitem(TARGETS, "pause", lambda: of_bytes(crashes, [b"12345"]))
    got = fuzz("pause", 10_000)
    assert got.finding.startswith("IndexError")
    assert len(bytes.fromhex(got.finding.rsplit(": ", 1)[1])) < 4
    assert fuzz("pause", 10_000).finding == got.finding


def test_whole_inputs_are_read():
    for parse, wholes in PARSERS.values():
        for whole in wholes:
            parse(whole)


def test_damage_is_the_same_for_a_seed():
    one, two = ([damaged(b"abcdef", b"xyz", random.Random(7)) for _ in range(5)] for _ in range(2))
    assert one == two


def test_a_result_replaces_its_former_one_and_no_other(tmp_path):
    path = tmp_path / "fuzz.json"
    keep({name: Result(name, 5, 1, 2.4) for name in ("ring", "sysfs")}, "r1", path)
    keep({"sysfs": Result("sysfs", 7, 1, 2.6, "ValueError: x")}, "r2", path)
    kept = json.loads(path.read_text())
    assert list(kept) == ["sysfs", "ring"]
    assert (kept["ring"]["inputs"], kept["ring"]["revision"]) == (5, "r1")
    assert (kept["sysfs"]["inputs"], kept["sysfs"]["finding"]) == (7, "ValueError: x")


def test_runs_add_up_and_a_finding_stays():
    both = added(Result("ring", 5, 1, 2.0, "ValueError: x"), Result("ring", 7, 2, 1.0))
    assert both == Result("ring", 12, 3, 3.0, "ValueError: x")
    assert added(Result("a", 1, None, 1.0), Result("a", 1, None, 1.0)).refused is None
