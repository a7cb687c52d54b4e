"""The list of tests that were flaky: it is sound, and who is on it is not excused again."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from lab.testrun import known_flaky, nightly, retry_alone
from lab.testrun.known_flaky import FILE, KnownFlakyError, find, load, missing, parse
from lab.testrun.run_report import Failure, Flaky, RunReport

REPO = Path(__file__).resolve().parents[3]


def row(**changes: str | None) -> str:
    """A row of the list; None leaves a key out."""
    keys = {
        "id": '"tests/lab/test_a.py::test_x"',
        "first_seen": "2026-11-28",
        "cause": '"It did not wait."',
        "mended": '"It waits."',
    } | changes
    lines = [f"{key} = {value}" for key, value in keys.items() if value is not None]
    return "\n".join(["[[test]]", *lines, ""])


def test_the_committed_list_is_sound_and_each_test_of_it_exists():
    tests = load(REPO / FILE)
    assert tests
    assert missing(tests, REPO) == []


def test_a_row_has_a_test_its_date_its_cause_and_what_mended_it():
    (test,) = parse(row())
    assert (test.id, test.first_seen) == ("tests/lab/test_a.py::test_x", date(2026, 11, 28))
    assert (test.cause, test.mended) == ("It did not wait.", "It waits.")
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[test]", "at line 1"),
        ("test = 7", "'test' is no list"),
        ("test = [7]", "test 1 is no table"),
        ("[tests]", "unknown key 'tests'"),
        (row(cause=None), "test 1: 'cause' is missing"),
        (row(mended=None), "test 1: 'mended' is missing"),
        (row(cause='" "'), "test 1: 'cause' is a text, and not empty"),
        (row(cause="7"), "test 1: 'cause' is a text"),
        (row(id=None), "test 1: 'id' is missing"),
        (row(id='"tests/lab/test_a.py"'), "is no test: write FILE::FUNCTION"),
        (row(first_seen=None), "test 1: 'first_seen' is missing"),
        (row(first_seen='"2026-11-28"'), "test 1: first_seen is a date"),
        (row(first_seen="2026-11-28T10:00:00"), "test 1: first_seen is a date"),
        (row(first_seen="2026-11-31"), "at line 3"),
        (row(seen="1"), "test 1: unknown key 'seen'"),
        (row() + row(), "tests/lab/test_a.py::test_x is listed twice"),
        (row() + row(id='"tests/lab/test_a.py::test_x[1]"'), "is listed twice, also as"),
        (row(id='"tests/lab/test_a.py::test_x[1]"') + row(), "is listed twice, also as"),
    ],
)
def test_a_bad_list_is_an_error_that_says_where(text, problem, tmp_path):
    with pytest.raises(KnownFlakyError, match=re.escape(problem)):
        parse(text)
    file = tmp_path / "list.toml"
    file.write_text(text)
    with pytest.raises(KnownFlakyError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_list_that_cannot_be_read_is_an_error(tmp_path, content):
    file = tmp_path / "list.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(KnownFlakyError, match=str(file)):
        load(file)


@pytest.mark.parametrize(
    ("listed", "test", "covered"),
    [
        ("f.py::test_x", "f.py::test_x", True),
        ("f.py::test_x", "f.py::test_x[a-1]", True),
        ("f.py::test_x", "f.py::test_x[f.py::test_x[1]]", True),
        ("f.py::test_x", "f.py::test_xy", False),
        ("f.py::test_x", "f.py::test_xy[a]", False),
        ("f.py::test_x", "g.py::test_x", False),
        ("f.py::test_x[a]", "f.py::test_x[a]", True),
        ("f.py::test_x[a]", "f.py::test_x[b]", False),
        ("f.py::test_x[a]", "f.py::test_x", False),
    ],
)
def test_a_row_without_parameters_covers_all_of_its_test(listed, test, covered):
    tests = parse(row(id=f'"{listed}"'))
    assert (find(tests, test) is not None) is covered


TREE = """
import no_such_module

def helper(): pass
def test_plain(): pass
async def test_async(): pass

class TestX:
    def test_method(self): pass
"""


def test_unknown_tests_are_found_without_an_import(tmp_path):
    (tmp_path / "test_a.py").write_text(TREE)
    (tmp_path / "test_broken.py").write_text("def test_x(:")
    good = ["test_plain", "test_plain[x-1]", "test_async", "TestX::test_method"]
    bad = ["test_other", "test_method", "TestY::test_method", "no_such_module"]
    text = "".join(row(id=f'"test_a.py::{name}"') for name in good if "[" not in name)
    assert missing(parse(text), tmp_path) == []
    assert missing(parse(row(id='"test_a.py::test_plain[x-1]"')), tmp_path) == []
    text = "".join(row(id=f'"test_a.py::{name}"') for name in bad)
    assert missing(parse(text), tmp_path) == [f"test_a.py::{name}" for name in bad]
    gone = ["test_none.py::test_plain", "test_broken.py::test_x"]
    assert missing(parse("".join(row(id=f'"{name}"') for name in gone)), tmp_path) == gone


TEST = "tests/lab/test_a.py::test_x[1]"
OTHER = "tests/lab/test_a.py::test_y"


@pytest.fixture
def tier(tmp_path, monkeypatch):
    """Retries a run in which two tests failed, with a list; ``alone``: how each run alone ends."""
    monkeypatch.chdir(tmp_path)

    def run(listed, alone=True):
        FILE.parent.mkdir(exist_ok=True)
        if listed is not None:
            FILE.write_text(listed)
        RunReport(7, 0, [Failure(TEST, "call", "x"), Failure(OTHER, "call", "y")]).write(
            Path("report.json")
        )
        monkeypatch.setattr(retry_alone, "_run", lambda *_: alone)
        status = retry_alone.main(["report.json"])
        return status, RunReport.read(Path("report.json"))

    return run


def test_a_flaky_test_that_is_not_listed_goes_on_and_asks_for_a_row(tier, capsys):
    status, report = tier(row(id='"tests/lab/test_a.py::test_z"'))
    assert (status, report.failed, report.returned) == (0, [], [])
    assert [test.test for test in report.flaky] == [TEST, OTHER]
    said = capsys.readouterr().out
    assert f"FLAKY {TEST} (build/log/flaky/" in said
    assert f"find the cause, mend it, and add a row to {FILE}" in said


def test_a_listed_test_that_is_flaky_again_is_red_and_the_others_are_judged(tier, capsys):
    status, report = tier(row())
    assert (status, report.failed, report.passed) == (1, [TEST], 7)
    (again,) = report.returned
    assert again.test == TEST
    assert [test.test for test in report.flaky] == [OTHER]
    said = capsys.readouterr().out
    assert f"RETURNED {TEST} ({again.log})" in said.splitlines()
    assert f"FLAKY {TEST}" not in said
    assert "says that its cause was mended. Cause: It did not wait. Mended: It waits." in said
    rows = [json.loads(line) for line in retry_alone.HISTORY.read_text().splitlines()]
    assert [(one["test"], one["flaky"], one["returned"]) for one in rows] == [
        (TEST, False, True),
        (OTHER, True, False),
    ]


def test_a_listed_test_that_fails_alone_has_failed_as_any_other(tier):
    status, report = tier(row(), alone=False)
    assert (status, report.failed) == (1, [TEST, OTHER])
    assert (report.returned, report.flaky) == ([], [])


@pytest.mark.parametrize("listed", [None, "[[test]", row(cause=None), row() + row()])
def test_without_a_sound_list_nothing_is_excused(tier, capsys, listed):
    status, report = tier(listed)
    assert (status, report.failed, report.flaky) == (1, [TEST, OTHER], [])
    assert f"no retry: {FILE}: " in capsys.readouterr().out


def test_the_nightly_step_that_a_listed_test_failed_says_so(tmp_path, monkeypatch):
    """In a checkout of its own: the rule is that of `retry_alone`."""
    report, log = tmp_path / "report.json", tmp_path / "log"
    RunReport(3, 0, [Failure(TEST, "call", "x")], returned=[Flaky(TEST, "l")]).write(report)
    monkeypatch.setattr(nightly, "REPO", tmp_path)
    step = nightly.Step("lab", "", lambda _: [([], {"PYTHONPATH": str(REPO)})], retried=True)
    assert nightly.retry(step, report, [], log) == 1
    assert nightly.said(log.read_text()) == f"3 passed, 1 failed, RETURNED {TEST}"
    assert f"no retry: {known_flaky.FILE}: " in log.read_text(), "it has no list"
