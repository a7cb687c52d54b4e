"""Rows of ``bench verbs`` from made-up rounds."""

import pytest

from bench.verbs.faults import Played, rows
from bench.verbs.rates import Measured, row
from bench.verbs.returns import Return, shares


def test_a_ratio_is_held_against_the_bound_where_verbs_carried_it():
    taken = {
        "ib_write_bw": [Measured(100, True), Measured(200, True), Measured(100, True)],
        "fabric": [Measured(95, True), Measured(180, True), Measured(80, True)],
    }
    made = row("64 KB", 0.9, "Mbit/s", taken, higher=True)
    assert (made.got, made.asked, made.ok) == (0.9, 0.9, True)
    assert made.samples["fabric"] == [95, 180, 80]
    assert row("8 B", 0.8, "µs", taken, higher=False).ok is False


def test_a_plugin_that_carries_tcp_is_asked_for_nothing():
    taken = {
        "ib_write_bw": [Measured(100, True)],
        "fabric": [Measured(500, False)],
    }
    made = row("64 KB", 0.9, "Mbit/s", taken, higher=True)
    assert (made.asked, made.ok) == (None, None)
    assert "TCP" in made.name


def played(case, mode="p2p", stall=1.0, rdma=True, failed=0, corrupt=0, down=0):
    return Played(case, mode, stall, 5.0, rdma, failed, corrupt, down)


def test_the_longest_stall_of_each_kind_of_fault_is_named():
    made = rows(
        [
            played("carrier", stall=40.0),
            played("carrier", "ring", stall=120.0),
            played("black hole", stall=900.0, down=1),
            played("process stopped", stall=5000.0),
        ]
    )
    event, silence = (row for row in made if row.name.startswith("stall"))
    assert (event.got, event.ok, event.note) == (
        120.0,
        False,
        "carrier, ring; median 80; undisturbed 5",
    )
    assert (silence.got, silence.ok) == (900.0, True)
    assert [row.ok for row in made if row.better == "equal"] == [True] * 4


def test_failed_ranks_wrong_bytes_and_a_stopped_process_that_is_called_dead_are_counted():
    stopped = played("process stopped", rdma=False, failed=1, corrupt=7, down=2)
    made = rows([stopped, played("admin", corrupt=1)])
    assert [row.got for row in made if row.better == "equal"] == [1, 8, 1, 2]
    assert not any(row.ok for row in made if row.better == "equal")


def samples(rate_before, rate_after, down_ns=10**10, up_ns=11 * 10**9):
    """One sample each 100 ms; nothing between."""
    for at in range(0, 20 * 10**9, 10**8):
        moved = rate_before if at <= down_ns else 0 if at <= up_ns else rate_after
        yield {"type": "sample", "t_ns": at, "rails": {"rail0": {"tx": moved}, "rail1": {"tx": 9}}}
    yield {"type": "end"}


def test_a_rate_after_a_return_is_part_of_that_before():
    outage = Return(10**10, 11 * 10**9)
    assert shares(list(samples(100, 95)), outage) == (0.95, 1.0)
    assert shares(list(samples(100, 0)), outage) == (0.0, 1.0)
    with pytest.raises(ValueError, match="nothing before"):
        shares(list(samples(0, 95)), outage)
