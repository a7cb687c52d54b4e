"""Which failures of the lab tier are run again by themselves."""

import json

import pytest

from lab import again


@pytest.mark.parametrize(
    ("failed", "errors", "worth"),
    [
        ([], [], False),
        (["a"], [], True),
        (["a", "b"], [], True),
        (["a", "b", "c"], [], False),
        (["a"], ["a"], False),
        ([], ["a"], False),
    ],
)
def test_a_few_failures_and_no_report(failed, errors, worth):
    assert again.worth_it(failed, errors) is worth


@pytest.fixture
def first(tmp_path, monkeypatch):
    monkeypatch.setattr(again, "LOG", tmp_path / "again.jsonl")
    monkeypatch.chdir(tmp_path)

    def left(text):
        (tmp_path / "test_one.py").write_text(text)
        named = {"failed": ["test_one.py::test_it"], "errors": []}
        (tmp_path / "failed.json").write_text(json.dumps(named))
        return again.main(["failed.json"])

    return left


@pytest.mark.parametrize(("body", "passes"), [("assert True", True), ("assert False", False)])
def test_the_second_run_is_kept_and_excuses_nothing(first, tmp_path, capfd, body, passes):
    assert first(f"def test_it():\n    {body}\n") == 1
    (row,) = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert row["tests"] == ["test_one.py::test_it"]
    assert row["passed"] is passes
    assert "by itself" in capfd.readouterr().out


def test_a_first_run_that_left_nothing_stays_failed(tmp_path):
    assert again.main([str(tmp_path / "none.json")]) == 1
