"""Checkpoints of several writers in one directory: real files, and writers that know nothing."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_train.state.checkpoint import (
    MANIFEST,
    CheckpointDirectory,
    CheckpointRefusedError,
    Token,
    newest_checkpoint,
)


def yes():
    return 1


def writer(directory, run="one", job="gpt"):
    return CheckpointDirectory(directory, job, run)


def begin(one, generation):
    return one.stage(one.claim(generation, yes))


def fill(staging, text="state"):
    (staging.path / "model").write_text(text)
    (staging.path / "more").mkdir()
    (staging.path / "more" / "optimizer").write_text(2 * text)


def end(one, staging, step):
    one.seal(staging, step)
    return one.publish(staging, step)


def write(one, generation, step, text="state"):
    staging = begin(one, generation)
    fill(staging, text)
    return end(one, staging, step)


def control(directory):
    return sorted(path.name for path in (directory / ".fabric").iterdir())


def test_a_checkpoint_is_there_whole_with_its_step_and_nothing_else_is_left(tmp_path):
    one = writer(tmp_path / "new" / "directory")
    assert newest_checkpoint(tmp_path / "new") is None
    done = write(one, 3, 100)
    found = newest_checkpoint(tmp_path / "new" / "directory")
    assert found == done
    assert (found.step, found.token, found.job) == (100, Token(1, 3), "gpt")
    assert (found.path / "more" / "optimizer").read_text() == "statestate"
    assert control(tmp_path / "new" / "directory") == [
        "generation-00000001-00000003", "run-00000001",
    ]  # fmt: skip


def test_a_writer_that_was_replaced_in_the_middle_publishes_nothing(tmp_path):
    one = writer(tmp_path)
    old = begin(one, 1)
    (old.path / "model").write_text("half")
    new = write(writer(tmp_path), 2, 40)
    with pytest.raises(FileNotFoundError):
        (old.path / "rest").write_text("of it")
    with pytest.raises(CheckpointRefusedError, match=r"generation 2 of run 1 .* took away"):
        one.seal(old, 60)
    with pytest.raises(CheckpointRefusedError, match="generation 2 of run 1"):
        one.publish(old, 60)
    assert newest_checkpoint(tmp_path) == new


@pytest.mark.parametrize("moment", ["claimed", "staged", "sealed", "checked"])
def test_at_whatever_moment_a_writer_stands_still_a_newer_one_is_not_overtaken(
    tmp_path, moment, monkeypatch
):
    """It goes on when the newer one has published, with no doubt that it is the newest."""
    one, published = writer(tmp_path), []

    def replace():
        if not published:
            published.append(write(writer(tmp_path), 2, 50))

    token = one.claim(1, yes)
    if moment == "claimed":
        replace()
    staging = one.stage(token)
    if moment == "staged":
        replace()

    def go_on():
        if staging.path.exists():
            fill(staging)
        one.seal(staging, 90)
        if moment == "sealed":
            replace()
        check = one.check
        if moment == "checked":
            monkeypatch.setattr(one, "check", lambda token: (check(token), replace()))
        one.publish(staging, 90)

    with pytest.raises(CheckpointRefusedError, match="generation 2 of run 1"):
        go_on()
    assert [newest_checkpoint(tmp_path)] == published
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000000050-run-0001"]


def test_a_later_run_is_newer_whatever_steps_and_generations_an_earlier_one_had(tmp_path):
    one, other = writer(tmp_path, "one"), writer(tmp_path, "other")
    write(one, 7, 300)
    late = begin(one, 8)
    new = write(other, 1, 60)
    with pytest.raises(CheckpointRefusedError, match="generation 1 of run 2"):
        end(one, late, 310)
    with pytest.raises(CheckpointRefusedError, match="generation 1 of run 2"):
        one.claim(9, yes)
    assert newest_checkpoint(tmp_path) == new
    assert newest_checkpoint(tmp_path).token == Token(2, 1)
    assert write(other, 2, 300).path.name == "step-000000000300-run-0002"


def test_a_run_that_stood_still_before_its_first_claim_gets_no_later_number(tmp_path):
    def stand_still():
        if not asked:
            write(writer(tmp_path, "new"), 1, 10)
        else:
            raise CheckpointRefusedError("not the newest")
        asked.append(1)

    asked = []
    with pytest.raises(CheckpointRefusedError, match="not the newest"):
        writer(tmp_path, "old").claim(1, stand_still)
    assert newest_checkpoint(tmp_path).token == Token(1, 1)
    assert "run-00000002" not in control(tmp_path)


def test_a_writer_that_goes_on_in_a_newer_generation_keeps_what_it_has_written(tmp_path):
    one = writer(tmp_path)
    staging = begin(one, 1)
    fill(staging)
    staging = one.restage(staging, Token(1, 2))
    one.claim(2, yes)
    assert end(one, staging, 5).token == Token(1, 2)


def test_what_another_job_or_another_writer_has_published_is_not_touched(tmp_path):
    write(writer(tmp_path), 1, 5, "first")
    with pytest.raises(CheckpointRefusedError, match="of job 'gpt', this is other"):
        writer(tmp_path, "two", "other").claim(1, yes)
    again = begin(writer(tmp_path), 1)
    fill(again, "second")
    with pytest.raises(CheckpointRefusedError, match="published already"):
        end(writer(tmp_path), again, 5)
    assert (newest_checkpoint(tmp_path).path / "model").read_text() == "first"


def test_what_a_step_that_is_run_again_has_published_before_stays(tmp_path):
    known = write(writer(tmp_path), 1, 5)
    again = begin(writer(tmp_path), 2)  # another rank was lost behind the step
    fill(again)
    writer(tmp_path).seal(again, 5)
    assert writer(tmp_path).publish(again, 5, repeats=True) == known
    assert not again.path.exists()
    (known.path / "model").unlink()  # what is not whole is no checkpoint of that step
    other = begin(writer(tmp_path), 3)
    fill(other)
    writer(tmp_path).seal(other, 5)
    with pytest.raises(CheckpointRefusedError, match="published already"):
        writer(tmp_path).publish(other, 5, repeats=True)


def test_an_answer_of_the_file_server_that_is_lost_does_no_harm(tmp_path, monkeypatch):
    """A client sends the rename again, and hears that there is nothing to rename."""
    one = writer(tmp_path)
    rename = os.rename

    def twice(source, target, **_):
        rename(source, target)
        rename(source, target)

    monkeypatch.setattr("pathlib.Path.rename", lambda self, target: twice(self, target))
    assert write(one, 1, 5) == newest_checkpoint(tmp_path)
    assert newest_checkpoint(tmp_path).token == Token(1, 1)


@pytest.mark.parametrize(
    "harm", ["gone", "shorter", "endless", "manifest", "version", "renamed", "no object"]
)
def test_a_checkpoint_that_is_not_whole_is_passed_over(tmp_path, harm):
    whole = write(writer(tmp_path), 1, 5)
    newer = write(writer(tmp_path), 1, 6)
    manifest = newer.path / MANIFEST
    match harm:
        case "gone":
            (newer.path / "model").unlink()
        case "shorter":
            (newer.path / "more" / "optimizer").write_text("")
        case "endless":
            manifest.unlink()
            manifest.symlink_to("/dev/zero")
        case "manifest":
            manifest.write_text(manifest.read_text()[:-30])
        case "version":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 2}))
        case "renamed":
            newer.path.rename(tmp_path / "step-000000000009-run-0001")
        case "no object":
            manifest.write_text("[]")
    assert newest_checkpoint(tmp_path) == whole


KEYS = st.sampled_from(["version", "run", "generation", "step", "job", "files"])
SIZES = st.dictionaries(st.text(), st.integers())
OBJECTS = st.dictionaries(KEYS, st.one_of(st.integers(), st.text(), st.none(), SIZES))


@settings(max_examples=60, deadline=None)
@given(data=OBJECTS | st.binary())
def test_a_manifest_of_any_content_is_a_checkpoint_or_none(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "step-000000000001-run-0001"
    path.mkdir()
    content = data if isinstance(data, bytes) else json.dumps({"version": 1, **data}).encode()
    (path / MANIFEST).write_bytes(content)
    found = newest_checkpoint(path.parent)
    assert found is None or (found.step, found.token.run) == (1, 1)
