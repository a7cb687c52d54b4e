"""The timeline store: exact counts, uniqueness, queries, retention, quarantine, full disk."""

import os
import resource
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import timeline_schema
from telemetry.events import Event, EventKind, LinkState
from telemetry.timeline import DAY_NS, Retention, Timeline, TimelineError, boot_id

NOW = 1_800_000_000 * 10**9


def flap(link="rail0", count=1, wall_ns=NOW, **kw):
    return Event(
        kind=EventKind.FLAP, wall_ns=wall_ns, mono_ns=wall_ns - NOW, link=link, count=count, **kw
    )


@pytest.fixture
def store(tmp_path):
    with Timeline(tmp_path / "state" / "timeline.db", host="h0") as timeline:
        yield timeline


def test_rows_come_back_as_they_were(store):
    event = Event(
        kind=EventKind.LINK_STATE,
        wall_ns=NOW,
        mono_ns=17,
        link="rail3",
        rail=3,
        peer="h1",
        from_state=LinkState.UP,
        to_state=LinkState.DOWN,
        reason="carrier",
        count=2,
        data={"weight": 0.0, "n": 3, "why": "x", "b": True, "none": None},
    )
    (stored,) = store.append([event])
    assert stored == replace(event, host="h0", boot_id=boot_id(), seq=1)
    assert store.query() == [stored]
    assert Event.from_dict(stored.to_dict()) == stored


def test_seq_has_no_gaps_and_survives_reopening_and_retention(tmp_path):
    path = tmp_path / "t.db"
    with Timeline(path, host="h0") as first:
        first.append([flap(), flap()])
        first.prune(NOW, now_mono_ns=1000 * DAY_NS)
        assert first.query() == []
    with Timeline(path, host="h0") as second:
        assert [e.seq for e in second.append([flap(), flap()])] == [3, 4]
        other = second.append([flap(host="h9", boot_id="b")])
        assert other[0].seq == 1


def test_a_repeated_import_changes_nothing(store):
    event = flap(count=5, host="h1", boot_id="b", seq=7)
    store.append([event])
    store.append([event, replace(event, seq=8)])
    assert [e.seq for e in store.query()] == [7, 8]
    assert store.flap_total("rail0", host="h1") == 10
    assert store.append([replace(event, seq=None)])[0].seq == 9


def test_append_is_all_or_nothing(store):
    with pytest.raises(TimelineError):
        store.append([flap(), flap(count=-1)])  # the schema refuses negative counts
    assert store.query() == []
    assert store.flap_total("rail0") == 0
    assert store.append([flap()])[0].seq == 1


@given(st.lists(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 100))), max_size=8))
def test_flap_counts_are_exact(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("t") / "t.db"
    with Timeline(path, host="h0") as store:
        for batch in batches:
            store.append([flap(link=link, count=count) for link, count in batch])
        for link in "ab":
            truth = sum(count for batch in batches for name, count in batch if name == link)
            assert store.flap_total(link) == truth
            assert sum(row.count for row in store.query(kind="flap", link=link)) == truth
        store.prune(NOW, now_mono_ns=1000 * DAY_NS)
        for link in "ab":
            truth = sum(count for batch in batches for name, count in batch if name == link)
            assert store.flap_total(link) == truth


def test_query_selects_by_time_link_kind_host_and_limit(store):
    store.append([flap(wall_ns=NOW + i, link=f"rail{i % 2}") for i in range(10)])
    store.append([Event(kind=EventKind.DAEMON, wall_ns=NOW + 10, mono_ns=0, reason="start")])
    assert [e.wall_ns - NOW for e in store.query(since_ns=NOW + 3, until_ns=NOW + 6)] == [3, 4, 5]
    assert [e.wall_ns - NOW for e in store.query(link="rail1", limit=2)] == [7, 9]
    assert [e.reason for e in store.query(kind="daemon")] == ["start"]
    assert [e.reason for e in store.query(link="")] == ["start"]
    assert store.query(host="elsewhere") == []
    assert store.query(limit=0) == []
    with pytest.raises(ValueError, match="nonsense"):
        store.query(kind="nonsense")
    with pytest.raises(ValueError, match="negative"):
        store.query(limit=-1)


def test_follow_sees_another_processes_rows_in_order(tmp_path):
    path = tmp_path / "t.db"
    writer = Timeline(path, host="h0")
    reader = Timeline(path, read_only=True)
    writer.append([flap(count=99)])
    got = []
    done = threading.Event()
    seen = reader.follow(poll_s=0.005, stop=done.is_set, cursor=reader.cursor())

    def write():
        for i in range(20):
            writer.append([flap(count=i)])

    thread = threading.Thread(target=write)
    thread.start()
    for event in seen:
        got.append(event.count)
        if len(got) == 20:
            done.set()
            break
    thread.join()
    assert got == list(range(20))


def test_retention_by_age_keeps_the_younger(store):
    store.append([flap(wall_ns=NOW - 91 * DAY_NS), flap(wall_ns=NOW - 89 * DAY_NS)])
    result = store.prune(NOW)
    assert (result.by_age, result.by_size) == (1, 0)
    assert [e.wall_ns for e in store.query()] == [NOW - 89 * DAY_NS]
    assert store.prune(NOW, Retention(days=88)).by_age == 1, "another retention counts at once"


OLD, OLDER = "an earlier boot", "one before"


def walls(store, boot):
    return [(e.wall_ns - NOW) // DAY_NS for e in store.query(limit=None) if e.boot_id == boot]


def test_a_clock_that_is_a_year_ahead_deletes_nothing(store):
    """100 rows of the last 50 days: one prune left none."""
    days = [flap(wall_ns=NOW - day * DAY_NS // 2) for day in range(100, 0, -1)]
    store.append([replace(event, boot_id=OLD) for event in days[:60]])
    store.append([replace(event, mono_ns=10**9) for event in days[60:]])
    result = store.prune(NOW + 365 * DAY_NS, now_mono_ns=20 * DAY_NS)
    assert (result.by_age, result.kept) == (
        0, "60 of 60 rows of earlier boots would go by the wall clock"
    )  # fmt: skip
    store.prune(NOW, now_mono_ns=21 * DAY_NS)
    assert len(store.query(limit=None)) == 100


def test_a_clock_that_was_set_since_the_last_prune_deletes_nothing_of_earlier_boots(store):
    store.append([flap(wall_ns=NOW - 80 * DAY_NS, boot_id=OLD), flap(boot_id=OLD)])
    assert store.prune(NOW, now_mono_ns=DAY_NS).kept == ""
    ahead = store.prune(NOW + 20 * DAY_NS, now_mono_ns=DAY_NS + 600 * 10**9)
    assert (ahead.by_age, ahead.kept) == (0, "the wall clock was set by 1727400 s")
    again = store.prune(NOW + 20 * DAY_NS + 600 * 10**9, now_mono_ns=DAY_NS + 1200 * 10**9)
    assert (again.by_age, again.kept) == (1, ""), "by then it is the clock of this host"


def test_rows_from_before_the_clock_was_set_stay_as_long_as_those_before_them(store):
    """A host whose RTC begins in 2000, until NTP answers."""
    wrong = 946_684_800 * 10**9
    store.append([flap(wall_ns=NOW - 100 * DAY_NS, boot_id=OLDER)])
    store.append([flap(wall_ns=NOW - 10 * DAY_NS, boot_id=OLDER)])
    store.append([flap(wall_ns=wrong, boot_id=OLD), flap(wall_ns=NOW - 9 * DAY_NS, boot_id=OLD)])
    store.append([replace(flap(wall_ns=wrong), mono_ns=10**9)])
    result = store.prune(NOW, now_mono_ns=DAY_NS)
    assert (result.by_age, result.kept) == (1, "")
    assert walls(store, OLDER) == [-10]
    assert len(walls(store, OLD)) == 2
    assert store.query()[-1].wall_ns == wrong, "of this boot"
    assert store.prune(NOW + 81 * DAY_NS, now_mono_ns=82 * DAY_NS).by_age == 2
    assert walls(store, OLD) == [-9]


def test_a_row_of_a_clock_that_was_ahead_once_keeps_none_after_it(store):
    store.append([flap(wall_ns=NOW + 3000 * DAY_NS, boot_id=OLD)])
    store.append([flap(wall_ns=NOW - day * DAY_NS, boot_id=OLD) for day in (95, 92, 1)])
    assert store.prune(NOW, now_mono_ns=DAY_NS).by_age == 2


def test_a_boot_that_lasts_longer_than_the_retention_ends_all_before_it(store):
    store.append(
        [flap(wall_ns=NOW + 500 * DAY_NS, boot_id=OLD), replace(flap(), mono_ns=50 * DAY_NS)]
    )
    assert store.prune(NOW, now_mono_ns=91 * DAY_NS).by_age == 1
    assert walls(store, OLD) == []


def test_totals_of_a_host_that_was_called_otherwise_at_first_are_its_own(tmp_path):
    """It started as `localhost`, before its name was set."""
    path = tmp_path / "t.db"
    with Timeline(path, host="localhost") as store:
        store.append([flap(count=3), flap(link="rail1", count=1), flap(host="h9", count=50)])
    with Timeline(path, host="gpu-7") as store:
        store.append([flap(count=4)])
        assert store.flap_totals() == {"rail0": 7, "rail1": 1}
        assert (store.flap_total("rail0"), store.flap_total("rail0", host="gpu-7")) == (7, 4)
        assert store.last_flap("rail1", boot_id()).count == 1
        assert store.last_flap("rail0", boot_id()).count == 4
        assert store.last_flap("rail0", "another") is None
        assert store.states() == {}
    with Timeline(path, read_only=True) as reader:
        assert reader.own_hosts == ("localhost", "gpu-7")
        assert reader.flap_totals() == {"rail0": 7, "rail1": 1}, "the support bundle had none"


def test_a_file_of_before_names_were_stored_is_all_of_its_host(tmp_path):
    path = tmp_path / "t.db"
    with Timeline(path, host="localhost") as store:
        store.append([flap(count=3)])
        store._db.execute("DELETE FROM state")
    with Timeline(path, host="gpu-7") as store:
        assert store.own_hosts == ("localhost", "gpu-7")
        assert store.flap_totals() == {"rail0": 3}


def test_retention_by_size_drops_the_oldest_and_shrinks_the_file(tmp_path):
    path = tmp_path / "t.db"
    with Timeline(path, host="h0", retention=Retention(max_mb=2)) as store:
        for block in range(30):
            store.append([replace(flap(wall_ns=NOW + block), reason="x" * 400)] * 300)
        store.set_state("kept", {"a": 1})
        before = store.size_bytes()
        assert before > 2e6
        result = store.prune(NOW)
        assert result.by_age == 0
        assert result.by_size > 0
        assert store.size_bytes() <= 2e6
        rows = store.query(limit=None)
        assert rows
        assert rows[-1].wall_ns == NOW + 29
        assert [e.seq for e in rows] == list(range(rows[0].seq, 9001))
        assert store.flap_total("rail0") == 9000
        assert store.get_state("kept") == {"a": 1}
    assert path.stat().st_size < before


def test_state_documents(store):
    assert store.get_state("mode") is None
    store.set_state("mode", {"mode": "steer", "n": [1, 2.5, None]})
    store.set_state("other", 3)
    store.set_state("mode", {"mode": "observe"})
    assert store.states() == {"mode": {"mode": "observe"}, "other": 3}
    with pytest.raises(TypeError):
        store.set_state("bad", object())
    with pytest.raises(ValueError, match="JSON"):
        store.set_state("bad", float("nan"))


def garbage(path):
    path.write_bytes(os.urandom(8192))


def foreign(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (a)")
    db.commit()
    db.close()


def newer(path):
    Timeline(path, host="h0").close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()


def gutted(path):
    Timeline(path, host="h0").close()
    db = sqlite3.connect(path)
    db.execute("DROP TABLE sequences")
    db.close()


def truncated(path):
    with Timeline(path, host="h0") as store:
        store.append([replace(flap(), reason="x" * 300)] * 500)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def holed(path):
    with Timeline(path, host="h0") as store:
        store.append([replace(flap(), reason="x" * 300)] * 500)
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * 8192)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (garbage, "not a database"),
        (foreign, "another program"),
        (newer, "schema version 99"),
        (gutted, "tables missing: sequences"),
        (truncated, ""),
        (holed, ""),
    ],
)
def test_an_unusable_file_is_set_aside_whole_and_said(tmp_path, spoil, word):
    path = tmp_path / "t.db"
    spoil(path)
    was = path.read_bytes()
    with Timeline(path, host="h0") as store:
        (aside,) = store.quarantined
        assert aside.read_bytes() == was
        (event,) = store.query()
        assert event.kind is EventKind.DAEMON
        assert aside.name in event.reason
        assert word in event.data["error"]
        assert event.seq == 1
        store.append([flap()])
        assert store.flap_total("rail0") == 1


def test_a_read_only_open_never_moves_the_file(tmp_path):
    path = tmp_path / "t.db"
    garbage(path)
    with pytest.raises(TimelineError, match="not a database"):
        Timeline(path, read_only=True)
    assert path.exists()
    with pytest.raises(TimelineError):
        Timeline(tmp_path / "missing.db", read_only=True)
    assert not (tmp_path / "missing.db").exists()


def test_two_quarantines_in_one_second_keep_both(tmp_path):
    path = tmp_path / "t.db"
    for _ in range(3):
        path.write_bytes(b"x" * 4096)
        Timeline(path, host="h0").close()
    assert len([p for p in tmp_path.iterdir() if ".unusable-" in p.name]) == 3


def test_corruption_met_while_writing_loses_no_event(tmp_path):
    path = tmp_path / "t.db"
    store = Timeline(path, host="h0")
    store.append([replace(flap(), reason="x" * 300)] * 500)
    store._read("PRAGMA wal_checkpoint(TRUNCATE)", ())
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    store._db.execute("PRAGMA cache_size=0")
    store._db.execute("PRAGMA shrink_memory")
    stored = store.append([flap(count=7)])
    assert len(store.quarantined) == 1
    assert [e.kind for e in store.query()] == [EventKind.DAEMON, EventKind.FLAP]
    assert store.query(kind="flap") == stored
    store.close()


def test_a_full_database_is_a_clear_error_and_can_be_retried(store):
    store.append([flap()])
    store._db.execute(f"PRAGMA max_page_count={store._read('PRAGMA page_count', ())[0][0]}")
    big = [replace(flap(count=1), reason="x" * 3000)] * 50
    with pytest.raises(TimelineError, match="disk is full") as caught:
        store.append(big)
    assert caught.value.retryable
    assert len(store.query()) == 1
    store._db.execute("PRAGMA max_page_count=100000")
    assert [e.seq for e in store.append(big)] == list(range(2, 52))
    assert store.flap_total("rail0") == 51


def test_a_write_that_the_kernel_refuses_is_retryable(tmp_path):
    """RLIMIT_FSIZE makes write(2) fail as a full file system does, halfway through a commit."""
    program = f"""
import resource, signal
from telemetry.timeline import Timeline, TimelineError
from telemetry.events import Event, EventKind
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Timeline({str(tmp_path / "t.db")!r}, host="h0")
event = Event(kind=EventKind.FLAP, wall_ns=1, mono_ns=1, link="a", reason="x" * 2000)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
store.append([event])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
try:
    store.append([event] * 1000)
except TimelineError as error:
    assert error.retryable, error
else:
    raise SystemExit("the limit did not bite")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert len(store.query()) == 1
assert store.append([event] * 1000)[-1].seq == 1001
print("retried")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "retried\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)  # ours is untouched


def test_a_held_lock_is_retryable(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline_schema, "BUSY_TIMEOUT_MS", 50)
    path = tmp_path / "t.db"
    with Timeline(path, host="h0") as store:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimelineError, match="lock") as caught:
            store.append([flap()])
        assert caught.value.retryable
        blocker.execute("ROLLBACK")
        blocker.close()
        store.append([flap()])


def test_migration_runs_in_the_transaction_that_raises_the_version(tmp_path, monkeypatch):
    path = tmp_path / "t.db"
    with Timeline(path, host="h0") as store:
        store.append([flap()])
    monkeypatch.setattr(timeline_schema, "SCHEMA_VERSION", 2)

    def fails(db):
        db.execute("ALTER TABLE state ADD COLUMN extra TEXT")
        raise sqlite3.OperationalError("halfway")

    monkeypatch.setitem(timeline_schema.MIGRATIONS, 1, fails)
    with pytest.raises(TimelineError, match="halfway"):
        Timeline(path, host="h0")
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert "extra" not in str(db.execute("PRAGMA table_info(state)").fetchall())
    db.close()
    monkeypatch.setitem(
        timeline_schema.MIGRATIONS,
        1,
        lambda db: db.execute("ALTER TABLE state ADD COLUMN extra TEXT"),
    )
    with Timeline(path, host="h0") as store:
        assert len(store.query()) == 1
        assert store._read("PRAGMA user_version", ()) == [(2,)]


def test_threads_may_share_a_store(store):
    def write(name):
        for _ in range(50):
            store.append([flap(link=name), flap(link=name)])

    threads = [threading.Thread(target=write, args=(f"rail{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(e.seq for e in store.query(limit=None)) == list(range(1, 401))
    assert store.flap_totals() == {f"rail{i}": 100 for i in range(4)}


def test_a_storm_of_flaps_does_not_wait_for_the_disk(store):
    """Eight links × 250 flaps a second."""
    (synchronous,) = store._read("PRAGMA synchronous", ())[0]
    (journal,) = store._read("PRAGMA journal_mode", ())[0]
    # In WAL, NORMAL (1) waits for the disk at checkpoints alone.
    assert (journal, synchronous) == ("wal", 1)
    for _ in range(200):
        store.append([flap()] * 10)
    assert store.flap_total("rail0") == 2000
