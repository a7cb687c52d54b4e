"""The store: what a commit returned is there after the file is opened again, or nothing of it."""

import contextlib
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compute.ledger import verify
from compute.store import NewRecord, Store, StoreError
from telemetry.messages.documents import ComputeJob, Fence

REPO = Path(__file__).parents[3]
FENCE = Fence(id="j/h1/i0", job="j", host="h1", incarnation="i0")
JOB = ComputeJob(job="j", phase="running", generation=2)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "compute.db"


def test_whose_a_fence_is_is_stored_where_the_version_before_does_not_read(path):
    store, other = Store(path), Fence(id="j/h2/i0", job="j", host="h2", incarnation="i0", uid=1001)
    store.commit([FENCE, other])
    store.commit([other.model_copy(update={"uid": 5})])
    assert store.fences() == [FENCE, other]
    assert all("uid" not in data for (data,) in store._rows("SELECT data FROM fences"))
    store.close()


def test_everything_of_a_commit_is_there_when_the_file_is_opened_again(path):
    store = Store(path)
    store.commit(
        [FENCE], [NewRecord("fence", {"host": "h1"})], [JOB], [("j/h1/i0", {"kind": "fence"})]
    )
    store.close()
    again = Store(path)
    assert again.fences() == [FENCE]
    assert [job for job, _ in again.jobs()] == [JOB]
    assert again.pending_commands() == [("j/h1/i0", {"kind": "fence"}, 0)]
    assert again.last.number == 1
    again.commit(records=[NewRecord("x", {})])
    assert verify(again.entries(), [], None).entries == 2
    assert verify(again.entries(), [], None).wrong == ()
    again.close()


@pytest.mark.parametrize("chained", ["no hash", "", "AB" * 32])
def test_a_newest_entry_that_is_none_is_said_when_the_file_is_opened(path, chained):
    store = Store(path)
    store.commit(records=[NewRecord("x", {}), NewRecord("y", {})])
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER ledger_is_not_changed")
        db.execute("UPDATE ledger SET hash = ? WHERE number = 2", (chained,))
        db.commit()
    reader = Store(path, read_only=True)
    assert len(verify(reader.entries(), [], None).wrong) == 1
    reader.close()
    with pytest.raises(StoreError, match="nothing can follow entry 2 of the ledger"):
        Store(path)


def test_what_is_said_twice_is_stored_once(path):
    store = Store(path)
    for _ in range(2):
        store.commit([FENCE], [NewRecord("host_event", {}, "id1")], [JOB], [("c", {"kind": "k"})])
    assert store.fences() == [FENCE]
    assert store.last.number == 1
    assert len(store.pending_commands()) == 1
    store.note_command("c", NewRecord("exec", {"attempt": 1}), over=False)
    assert len(store.pending_commands()) == 1
    store.note_command("c", NewRecord("exec", {"attempt": 2}), over=True)
    assert [entry.record["kind"] for entry in store.entries()] == ["host_event", "exec", "exec"]
    assert verify(store.entries(), [], None).wrong == ()
    store.commit(commands=[("c", {"kind": "k"})])
    assert store.pending_commands() == [], "a command that has ended never runs again"
    store.commit(gone=["j"])
    assert store.jobs() == []
    store.close()


def test_a_full_disk_leaves_nothing_and_the_next_commit_follows_the_last_good_one(path):
    store = Store(path)
    store.commit(records=[NewRecord("a", {})])
    store._db.execute("PRAGMA max_page_count=1")
    with pytest.raises(StoreError, match="full"):
        store.commit([FENCE], [NewRecord("b", {"x": "y" * 200_000})])
    store._db.execute("PRAGMA max_page_count=100000")
    assert store.fences() == []
    store.commit(records=[NewRecord("c", {})])
    assert [entry.record["kind"] for entry in store.entries()] == ["a", "c"]
    assert verify(store.entries(), [], None).wrong == ()
    store.close()


def test_no_entry_of_the_ledger_is_changed_or_deleted(path):
    store = Store(path)
    store.commit(records=[NewRecord("a", {})])
    for statement in ("UPDATE ledger SET line = ''", "DELETE FROM ledger"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            store._db.execute(statement)
    store.close()


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_file_that_is_no_database_is_refused_to_read(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"compute\.db"):
        Store(path, read_only=True)


def test_a_database_of_another_version_is_left_alone(path):
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="version 7"):
        Store(path)
    assert path.read_bytes() == before


def test_a_reader_changes_nothing(path):
    with pytest.raises(StoreError):
        Store(path, read_only=True)
    assert not path.exists()
    Store(path).close()
    reader = Store(path, read_only=True)
    with pytest.raises(StoreError, match="readonly"):
        reader.commit([FENCE])
    reader.close()


WRITER = """
import sys
from pathlib import Path
from compute.store import NewRecord, Store
from telemetry.messages.documents import Fence
store = Store(Path(sys.argv[1]))
for i in range(100000):
    store.commit([Fence(id=str(i), job="j", host="h", incarnation="i")], [NewRecord("r", {"i": i})])
    print(i, flush=True)
"""


def test_kill_9_loses_nothing_that_was_acknowledged(path):
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=REPO, stdout=subprocess.PIPE, text=True
        )
        said = [writer.stdout.readline() for _ in range(5)]
        time.sleep(0.01)
        writer.kill()
        said += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        store = Store(path)
        result = verify(store.entries(), [], None)
        assert result.wrong == ()
        assert {one.id for one in store.fences()} >= {text.strip() for text in said[:-1]}
        assert result.entries >= len(said) - 1
        store.close()
