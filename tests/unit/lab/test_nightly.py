"""The nightly run's book-keeping."""

import json
import sys
import tempfile
from pathlib import Path

import pytest
import typer

from lab.testrun import nightly
from lab.testrun.nightly import STEPS, Step, chosen, keep, run, said


def command(*code: str):
    return lambda extra: [([sys.executable, "-c", c, *extra], {}) for c in code]


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setattr(nightly, "LOGS", tmp_path)
    return tmp_path


def test_steps_are_chosen_by_name_in_their_order():
    assert list(chosen("")) == STEPS
    assert [s.name for s in chosen("matrix, lint")] == ["lint", "matrix"]
    with pytest.raises(typer.BadParameter, match="no step 'lnit'; there are"):
        chosen("lnit")


def test_the_last_line_without_its_frame_is_what_a_run_said():
    assert said("== 3 failed\n\x1b[32m==== 5 passed in 2.0s ====\x1b[0m\n\n====\n") == (
        "5 passed in 2.0s"
    )
    assert said("") == ""


def test_a_step_fails_when_one_of_its_commands_does(logs: Path):
    good = run(Step("a", "", command("print('one')", "print('two')")), [])
    assert (good.ok, good.said) == (True, "one; two")
    bad = run(Step("b", "", command("print('fine')", "raise SystemExit(3)")), [])
    assert not bad.ok
    assert (logs / "nightly-b.log").read_text() == "fine\n"


def test_further_arguments_reach_the_command(logs: Path):
    result = run(Step("c", "", command("import sys; print(sys.argv[1:])")), ["-k", "flap"])
    assert result.said == "['-k', 'flap']"


FLAKY_TEST = """
from pathlib import Path

def test_first_time():
    seen = Path(__file__).with_suffix(".seen")
    again = seen.exists()
    seen.touch()
    assert again and {well}

def test_well():
    pass
"""


@pytest.mark.parametrize("well", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_what_fails_in_the_lab_is_run_alone(logs: Path, well):
    """In a folder of the unit tests, whose conftest.py writes the report."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".retried-") as folder:
        file = Path(folder) / "test_retried.py"
        file.write_text(FLAKY_TEST.format(well=well))
        test = f"{file.relative_to(nightly.REPO)}::test_first_time"
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        result = run(Step("d", "", lambda extra: [([*argv, *extra], {})], retried=True), [])
    assert result.ok == well
    assert result.said == (f"1 passed, 0 failed, FLAKY {test}" if well else "1 passed, 1 failed")


def test_a_result_replaces_its_former_one_and_leaves_the_others(logs: Path):
    path = logs / "results" / "nightly.json"
    ok = run(Step("lint", "", command("print('ok')")), [])
    bad = run(Step("lint", "", command("raise SystemExit(1)")), [])
    for name, result in (("matrix", ok), ("lint", bad), ("lint", ok)):
        keep(name, result, path)
    kept = json.loads(path.read_text())
    assert list(kept) == ["lint", "matrix"]
    assert kept["lint"]["ok"]
    assert kept["lint"]["date"]


def test_each_folder_of_tests_has_a_step_of_its_own():
    """Test files of two directories may have one name: one pytest cannot collect both."""
    folders = {
        f"tests/{folder.name}"
        for folder in (nightly.REPO / "tests").iterdir()
        if any("nightly" in path.read_text() for path in folder.glob("**/test_*.py"))
    }
    assert len(folders) > 3
    found = set()
    for step in STEPS:
        for command, _ in step.commands([]):
            within = {folder for folder in folders for word in command if word.startswith(folder)}
            assert len(within) <= 1, step.name
            found |= within
    assert found == folders
