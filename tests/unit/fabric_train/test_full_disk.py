"""A full file system is told from other errors of a checkpoint."""

import errno
from types import SimpleNamespace

import pytest

from fabric_train.messages.process import NewestAnswer
from fabric_train.rank.guard import guarded_checkpoint
from fabric_train.state import full_disk
from fabric_train.state.checkpoint import CheckpointDirectory, newest_checkpoint

TORCH_SAYS = RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0")


def refusing(code):
    def probe(_directory):
        raise OSError(code, "refused")

    return probe


def test_the_error_of_torch_on_a_full_disk_becomes_one_that_says_so_with_sizes(tmp_path):
    (tmp_path / "model").write_bytes(bytes(3 << 20))
    found = full_disk.full(tmp_path, tmp_path, TORCH_SAYS, refusing(errno.ENOSPC))
    assert found.errno == errno.ENOSPC
    assert found.filename == str(tmp_path)
    assert "3.0 MiB of it were written, " in found.strerror
    assert " are free. It is not published; those before it, and the job, are as they" in str(found)


def test_a_quota_is_named():
    found = full_disk.full(".", None, OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert "no room for a checkpoint, by its quota: 0 B of it were written" in found.strerror


@pytest.mark.parametrize("error", [TORCH_SAYS, FileNotFoundError(errno.ENOENT, "no such file")])
def test_with_room_an_error_has_another_cause_and_the_probe_leaves_nothing(tmp_path, error):
    assert full_disk.full(tmp_path, tmp_path, error) is None
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_not_called_full(tmp_path):
    assert full_disk.full(tmp_path, tmp_path, TORCH_SAYS, refusing(errno.EACCES)) is None


def test_a_checkpoint_without_room_is_not_published_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(full_disk.full, "__defaults__", (refusing(errno.ENOSPC),))
    link = SimpleNamespace(
        ask=lambda request, _timeout: NewestAnswer(request.question, 3), released=False
    )
    checkpoints = CheckpointDirectory(tmp_path, "gpt", "one")
    with guarded_checkpoint(checkpoints, link, 0, 5, 1.0) as path:
        (path / "model").write_text("state")

    def save():
        with guarded_checkpoint(checkpoints, link, 0, 10, 1.0) as path:
            (path / "model").write_text("half")
            raise TORCH_SAYS

    with pytest.raises(full_disk.CheckpointFullError, match="no room for a checkpoint: 4 B"):
        save()
    assert newest_checkpoint(tmp_path).step == 5
    assert not list((tmp_path / ".fabric").glob("staging-*"))
