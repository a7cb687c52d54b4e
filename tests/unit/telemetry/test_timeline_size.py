"""The timeline's size limit on a real file: which rows go, and that it goes on."""

from telemetry.events import Event, EventKind
from telemetry.timeline import Retention, Timeline

NOW = 1_800_000_000 * 10**9


def test_a_flood_of_plugin_rows_displaces_no_state_and_no_flap(tmp_path):
    """167 rows a second of a hostile page turned 512 MB over in 2.5 h, link states first."""
    kept = [
        Event(kind, NOW + n, n, link="rail0", count=2 if kind is EventKind.FLAP else 1)
        for n in range(200)
        for kind in (EventKind.LINK_STATE, EventKind.FLAP, EventKind.OPERATOR)
    ]
    flood = [Event(EventKind.PLUGIN, NOW, 0, reason="path_down" + "x" * 300)] * 2000
    with Timeline(tmp_path / "t.db", host="h0", retention=Retention(max_mb=2)) as store:
        store.append(kept)
        for _ in range(10):
            store.append(flood)
            store.prune(NOW)
            assert store.size_bytes() <= 2e6
        for kind in (EventKind.LINK_STATE, EventKind.FLAP, EventKind.OPERATOR):
            found = store.query(kind=kind, limit=None)
            assert [row.mono_ns for row in found] == list(range(200)), kind
        seqs = [row.seq for row in store.query(kind=EventKind.PLUGIN, limit=None)]
        assert seqs == list(range(seqs[0], 20_601)), "the oldest went"


def test_a_kind_of_a_later_release_does_not_end_the_retention(tmp_path):
    with Timeline(tmp_path / "t.db", host="h0", retention=Retention(max_mb=2)) as store:
        store.append([Event(EventKind.FLAP, NOW, 0, link="rail0", reason="x" * 400)] * 3000)
        store._db.execute("UPDATE events SET kind = 'portal' WHERE id > 1500")
        store.prune(NOW)
        assert store.size_bytes() <= 2e6
        assert len(store.query(kind=EventKind.FLAP, limit=None)) == 1500
