"""Flap counts: every carrier loss once, over restarts, in any order of readings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config.loader import parse
from fabricd.engine import Engine
from fabricd.links.carrier import CarrierTracker
from fabricd.links.flaps import FlapLedger
from telemetry.events import EventKind

CONFIG = '[host]\nname = "h"\n[[links]]\nnetdev = "r"\nrail = 0\naddress = "10.0.0.1"\n'


def tracker(ledger=None):
    engine = Engine(parse(CONFIG, "f"), [])
    return CarrierTracker(engine, ledger or FlapLedger("boot"), {})


def read(b, count, carrier=True, ifindex=2, at=1, current=False):
    return b.reading(
        b.engine.links[0], ifindex=ifindex, down_count=count, carrier=carrier, mono_ns=at,
        wall_ns=at, source="t", current=current,
    )  # fmt: skip


def test_first_reading_is_a_starting_point():
    b = tracker()
    assert read(b, 41) == []
    assert b.totals == {}


def test_down_and_up_are_two_rows():
    b = tracker()
    read(b, 1)
    flap = read(b, 2, carrier=False)
    assert [(e.kind, e.count, e.data["down_count"]) for e in flap] == [(EventKind.FLAP, 1, 2)]
    assert [e.kind for e in read(b, 2)] == [EventKind.CARRIER_UP]
    assert b.totals == {"r": 1}
    assert b.engine.links[0].pending_downs == 1


def test_many_at_once_are_one_row_with_their_count():
    b = tracker()
    read(b, 0)
    events = read(b, 100)
    assert [(e.kind, e.count) for e in events] == [
        (EventKind.FLAP, 100),
        (EventKind.CARRIER_UP, 1),
    ]


def test_the_same_or_an_older_reading_counts_nothing():
    b = tracker()
    read(b, 5)
    read(b, 9)
    assert read(b, 9) == []
    assert read(b, 7, carrier=False) == []
    assert b.engine.links[0].carrier, "an old reading changes nothing"
    assert b.totals == {"r": 4}


def test_new_device_of_the_same_name():
    b = tracker()
    read(b, 5, carrier=True)
    events = read(b, 1, ifindex=3)
    assert [e.count for e in events if e.kind is EventKind.FLAP] == [1], "the old one went away"
    read(b, 2, ifindex=3)
    assert b.totals == {"r": 2}


def test_vanished_device_counts_once():
    b = tracker()
    read(b, 5)
    link = b.engine.links[0]
    assert [e.count for e in b.gone(link, mono_ns=1, wall_ns=1, source="t")] == [1]
    assert b.gone(link, mono_ns=2, wall_ns=2, source="t") == []
    read(b, 0, ifindex=9)
    assert b.totals == {"r": 1}


def test_counts_survive_a_restart_of_the_daemon():
    ledger = FlapLedger("boot")
    first = tracker(ledger)
    read(first, 10)
    read(first, 12, carrier=False)
    again = FlapLedger("boot")
    assert again.restore(ledger.save())
    second = tracker(again)
    events = read(second, 17)
    assert [(e.kind, e.count) for e in events] == [
        (EventKind.FLAP, 5),
        (EventKind.CARRIER_UP, 1),
    ]


def test_a_row_newer_than_the_document_wins_and_an_older_does_not():
    ledger = FlapLedger("boot")
    ledger.observe("r", 2, 10, carrier=True)
    ledger.restore_row("r", 2, 14, carrier=False)
    assert ledger.observe("r", 2, 15, carrier=True) == 1
    ledger.restore_row("r", 2, 3, carrier=False)
    assert ledger.observe("r", 2, 15, carrier=True) == 0


def restored(ledger):
    again = FlapLedger("boot")
    assert again.restore(ledger.save())
    return again


@pytest.mark.parametrize("told", [None, 1])
def test_a_row_of_a_carrier_that_is_back_by_the_document_is_older(told):
    ledger = FlapLedger("boot")
    ledger.observe("r", 2, 13, carrier=True)
    ledger.observe("r", 2, 14, carrier=False)
    ledger.observe("r", 2, 14, carrier=True)
    again = restored(ledger)
    again.restore_row("r", 2, 14, carrier=False, told=told)
    assert again.mark("r").carrier
    assert again.observe("r", 3, 0, carrier=True) == 1, "the driver was reloaded meanwhile"


def test_a_device_that_went_after_the_document_is_not_counted_again():
    b = tracker()
    read(b, 14)
    document = restored(b.ledger)
    (row,) = b.gone(b.engine.links[0], mono_ns=1, wall_ns=1, source="t")
    data = row.data
    document.restore_row("r", data["ifindex"], data["down_count"], carrier=data["carrier"],
                         told=data["told"])  # fmt: skip
    assert document.observe("r", 3, 0, carrier=True) == 0


def test_a_row_of_an_earlier_device_does_not_win_over_its_successor():
    b = tracker()
    read(b, 14)
    (row,) = b.gone(b.engine.links[0], mono_ns=1, wall_ns=1, source="t")
    read(b, 0, ifindex=3)
    again = restored(b.ledger)
    again.restore_row("r", 2, 14, carrier=False, told=row.data["told"])
    assert again.observe("r", 3, 1, carrier=True) == 1


def test_a_kept_state_in_another_network_namespace_is_a_starting_point():
    ledger = FlapLedger("boot")
    ledger.observe("r", 2, 12, carrier=True)
    b = tracker(restored(ledger))
    assert read(b, 3) == [], "a record may be old"
    assert b.ledger.mark("r").down_count == 12
    assert read(b, 3, carrier=False, current=True) == []
    assert b.engine.links[0].carrier is False
    assert [e.kind for e in read(b, 3, current=True)] == [EventKind.CARRIER_UP]
    assert [e.count for e in read(b, 4, carrier=False, current=True)] == [1]
    assert read(b, 2, current=True) == [], "it has been read in this life: that one is late"
    assert b.totals == {"r": 1}


def test_another_boot_begins_anew():
    ledger = FlapLedger("one")
    ledger.observe("r", 2, 10, carrier=True)
    other = FlapLedger("two")
    assert not other.restore(ledger.save())
    assert other.observe("r", 2, 3, carrier=True) == 0


@pytest.mark.parametrize(
    "document", [{}, {"boot_id": "b"}, {"boot_id": "b", "marks": {"r": [1]}}, {"boot_id": "b",
                 "marks": {"r": ["x", 1, True]}}, {"boot_id": "b", "marks": 3}],
)  # fmt: skip
def test_garbage_is_refused(document):
    ledger = FlapLedger("b")
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        ledger.restore(document)
    assert ledger.mark("r") is None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=60),
    st.integers(0, 1000),
)
def test_sum_of_rows_is_what_the_kernel_counted(steps, start):
    """Readings repeat, skip and are cut by restarts; the sum is exact."""
    b = tracker()
    read(b, start)
    count, rows = start, 0
    for more, carrier, restart in steps:
        count += more
        rows += sum(e.count for e in read(b, count, carrier) if e.kind is EventKind.FLAP)
        if restart:
            ledger = FlapLedger("boot")
            ledger.restore(b.ledger.save())
            b = tracker(ledger)
    assert rows == count - start
