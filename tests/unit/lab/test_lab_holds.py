"""Overlapping faults on one port: the table of who holds it down."""

import os

import pytest

from lab.faults.holds import SLOTS, Holder, HoldTable
from lab.lifecycle.procs import ProcessId, myself


@pytest.fixture
def table(tmp_path):
    made = HoldTable(tmp_path / "holds")
    yield made
    made.close()


def mine(serial: int) -> Holder:
    me = myself()
    return Holder(me.pid, me.start & 0xFFFFFFFF, serial)


def test_first_takes_down_and_last_brings_up(table):
    a, b = mine(1), mine(2)
    assert table.take(3, a)
    assert not table.take(3, b)
    assert not table.release(3, a)
    assert table.release(3, b)
    assert table.holders(3) == []


def test_rows_are_apart(table):
    assert table.take(0, mine(1))
    assert table.take(1, mine(1))
    assert table.take(900, mine(1))
    assert table.release(1, mine(1))
    assert table.holders(0)
    assert table.holders(900)
    assert table.holders(5) == []


def test_taking_or_releasing_twice_changes_nothing(table):
    assert table.take(0, mine(1))
    assert not table.take(0, mine(1))
    assert table.release(0, mine(1))
    assert not table.release(0, mine(1))
    assert not table.release(0, mine(7))


def test_another_process_sees_it(table, tmp_path):
    table.take(2, mine(1))
    other = HoldTable(tmp_path / "holds")
    assert other.holders(2) == [mine(1)]
    other.close()


def test_holds_of_the_dead_are_reaped(table):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead = Holder(child, 1, 1)
    # The same pid with another start time is another process.
    reused = Holder(myself().pid, (myself().start + 1) & 0xFFFFFFFF, 1)
    table.take(0, dead)
    table.take(0, reused)
    assert table.reap(0)
    assert table.holders(0) == []
    table.take(1, dead)
    table.take(1, mine(1))
    assert not table.reap(1)
    assert table.holders(1) == [mine(1)]


def test_too_many(table):
    for serial in range(1, SLOTS + 1):
        table.take(0, mine(serial))
    with pytest.raises(OSError, match="held down"):
        table.take(0, mine(99))


def test_process_id_is_pid_and_start_time():
    me = myself()
    assert me.alive
    assert not ProcessId(me.pid, me.start + 1).alive
    assert not ProcessId(me.pid, me.start + 1).signal(9)
    assert ProcessId.of(2**22 + 1) is None
