"""Damaged inputs by the thousand in each run, ten million for each parser nightly."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from lab.fuzz import runner
from lab.fuzz.parsers import PARSERS, damaged, of_bytes
from lab.fuzz.runner import NATIVE, TARGETS, Result, added, fuzz, keep

REPO = Path(__file__).resolve().parents[4]


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


# Fails when another one is at work, as two of three did that configured one folder at once.
BUSY = """#!/bin/bash
mkdir busy 2>/dev/null || { echo "another is at work" >&2; exit 1; }
trap 'rmdir busy' EXIT
sleep 0.05
"""
CMAKE = BUSY + "touch build/fuzz/build.ninja\n"
NINJA = (
    BUSY
    + """
shift 2
for target in "$@"; do
  path=build/fuzz/prober/$target
  mkdir -p "${path%/*}"
  printf '#!/bin/bash\\necho stat::number_of_executed_units: 7 >&2\\n' >"$path"
  chmod +x "$path"
done
"""
)


@pytest.fixture
def fresh_machine(tmp_path, monkeypatch):
    """A checkout that nothing was built in, with a cmake and a ninja of our own."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(runner, "FUZZ", tmp_path / "lab" / "fuzz.sh")
    shutil.copy(REPO / "lab" / "fuzz.sh", runner.FUZZ)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def build_with(**programs):
        for name, text in programs.items():
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)

    return build_with


def test_three_targets_at_once_build_on_a_fresh_machine(fresh_machine):
    fresh_machine(cmake=CMAKE, ninja=NINJA)
    results = runner.run(list(NATIVE), 7, jobs=3)
    assert [(r.target, r.inputs, r.finding, r.error) for r in results] == [
        (name, 7, "", "") for name in NATIVE
    ]


def test_a_failed_build_is_no_finding_and_replaces_no_result(fresh_machine, tmp_path):
    fresh_machine(cmake="#!/bin/bash\necho no such compiler >&2\nexit 1\n", ninja=NINJA)
    (result,) = runner.run(["prober_ports"], 7)
    assert result.finding == ""
    assert result.error.startswith("the build failed: ")
    assert "no such compiler" in result.error
    path = tmp_path / "fuzz.json"
    keep({"prober_ports": Result("prober_ports", 5, None, 1.0)}, "r1", path)
    before = path.read_text()
    keep({"prober_ports": result}, "r2", path)
    assert path.read_text() == before
