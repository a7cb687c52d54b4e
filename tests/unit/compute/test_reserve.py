"""A disk that is full, and what decisions have of it."""

import os
import subprocess

import pytest

from compute.reserve import BYTES, Reserve
from compute.store import NewRecord, Store, StoreError
from telemetry.messages.documents import Fence

FENCE = Fence(id="f", job="j", host="h", incarnation="i")


@pytest.fixture
def disk(tmp_path):
    """A file system of 64 MB."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a file system of its own")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def fill(file):
    with file.open("wb") as into:
        try:
            while into.write(b"x" * 65536):
                into.flush()
        except OSError:
            pass


def test_a_full_disk_stops_no_decision_and_keeps_events_out(disk):
    store = Store(disk / "compute.db")
    assert store.reserve.held
    store.commit(records=[NewRecord("a", {})])
    fill(disk / "flood")
    for number in range(200):
        store.commit([FENCE], [NewRecord("fence", {"n": number, "text": "x" * 2000})])
    assert not store.reserve.held
    assert store.last.number == 201
    with pytest.raises(StoreError, match="what is left is for decisions"):
        store.add_event("e", {})
    (disk / "flood").unlink()
    assert store.add_event("e", {}), "there is room again"
    assert store.reserve.held
    store.close()
    store = Store(disk / "compute.db")
    assert store.fences() == [FENCE]
    store.close()


def test_on_a_small_disk_there_is_none_and_it_is_said(tmp_path, monkeypatch):
    reserve = Reserve(tmp_path / "reserve", size=1 << 60)
    assert not reserve.take()
    assert not reserve.give_back()
    assert not reserve.held


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "reserve").symlink_to(tmp_path / "other")
    assert not Reserve(tmp_path / "reserve").take()
    assert not (tmp_path / "other").exists()


def test_one_that_is_there_is_kept(tmp_path):
    assert Reserve(tmp_path / "reserve").take()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= BYTES
    again = Reserve(tmp_path / "reserve")
    assert again.take()
    assert again.give_back()
    assert not (tmp_path / "reserve").exists()
