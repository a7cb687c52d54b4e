"""One-way delays of the daemon's view by what the clock service says."""

import json
import os
import time

import pytest

from fabricd.delay.fabric import FRESH_NS, LED_NS, MOST_BOUND_NS, Apart, FabricTimes, apart
from fabricd.delay.path import PathDelay, Reading
from fabricd.delay.view import DelayView, PathPlace
from fabricd.probes.stamps import Exchange

SECOND = 10**9
HOSTS = {("rail0", "10.0.0.2"): "h1", ("rail1", "10.1.0.2"): "h1", ("rail0", "10.0.0.3"): "h2"}


def row(netdev="rail0", peer="10.0.0.2", **more):
    return {
        "netdev": netdev, "peer": peer, "at_ns": 7 * SECOND, "offset_ns": 5000.0, "slope": 1e-6,
        "surplus_ns": 400.0, "way_bound_ns": 3000.0,
    } | more  # fmt: skip


def test_of_a_hosts_paths_the_one_that_is_known_best_counts_for_all_of_them():
    rows = [row(), row("rail1", "10.1.0.2", offset_ns=4700.0, surplus_ns=90.0, way_bound_ns=2000.0)]
    assert apart(rows, HOSTS) == {"h1": Apart(7 * SECOND, 4610.0, 1e-6, 2000.0)}


def test_what_the_line_has_left_out_already_is_not_taken_off_twice():
    rows = [row(surplus_ns=900.0, way_skew_ns=500.0)]
    assert apart(rows, HOSTS)["h1"].offset_ns == 4600.0


@pytest.mark.parametrize("strange", [
    row(peer="10.9.9.9"), row(way_bound_ns=None), row(at_ns=None), row(surplus_ns=None), {},
    row(way_bound_ns=MOST_BOUND_NS + 1.0),
])  # fmt: skip
def test_what_is_open_too_vague_or_of_nobody_is_left_out(strange):
    assert apart([strange, row(peer="10.0.0.3")], HOSTS).keys() == {"h2"}


def test_a_line_is_carried_on_for_a_while():
    line = Apart(7 * SECOND, 4610.4, 1e-6, 2000.0)
    assert line.at(9 * SECOND) == Reading(6610, 2000)
    assert line.at(7 * SECOND + LED_NS + 1) is None
    assert line.at(7 * SECOND - LED_NS - 1) is None


def document(*rows):
    numbers = dict.fromkeys(("residual_ns", "slope", "neighbours", "lost", "joins"), 0)
    return json.dumps(numbers | {"paths": list(rows)})


@pytest.fixture
def times(tmp_path):
    found = FabricTimes(tmp_path)
    found.configure(HOSTS)
    return found


def test_the_document_is_read_when_it_is_another_one_and_forgotten_when_it_is_old(times, tmp_path):
    times.look()
    assert times("h1", 7 * SECOND) is None, "no clock service"
    file = tmp_path / "clock.json"
    file.write_text(document(row()))
    times.look()
    assert times("h1", 7 * SECOND) == Reading(4600, 3000)
    assert times("h2", 7 * SECOND) is None
    late = time.time_ns() - FRESH_NS - SECOND
    os.utime(file, ns=(late, late))
    times.look()
    assert times("h1", 7 * SECOND) is None
    file.write_text(document(row(offset_ns=900.0)))
    times.look()
    assert times("h1", 7 * SECOND) == Reading(500, 3000)
    times.configure({})
    times.look()
    assert times("h1", 7 * SECOND) is None


@pytest.mark.parametrize("text", ["", "[]", '{"paths": 3}', document({"at_ns": "x"}), document(3)])
def test_what_is_no_document_says_nothing(times, tmp_path, text):
    (tmp_path / "clock.json").write_text(document(row()))
    times.look()
    assert times("h1", 7 * SECOND) is not None
    (tmp_path / "clock.json").write_text(text)
    times.look()
    assert times("h1", 7 * SECOND) is None


def exchanges(second, hardware=0):
    """Ten a second; 50 µs out, 20 µs back; the peer's clock is 1 ms ahead."""
    for number in range(10):
        sent = second * SECOND + number * SECOND // 10
        heard = sent + 90_000
        there = sent + 50_000 + 10**6, heard - 20_000 + 10**6
        yield Exchange(sent, *there, heard, hardware)


@pytest.mark.parametrize("hardware", [0, 3])
def test_stamps_of_nics_are_by_other_clocks(hardware):
    asked = []

    def fabric(peer, now_ns):
        asked.append((peer, now_ns))
        return Reading(10**6, 3000)

    view = DelayView(fabric_time=fabric)
    view.configure([PathPlace(0, "rail0", "h1", "10.0.0.2")])
    for second in range(1, 12):
        view.feed({0: list(exchanges(second, hardware))}, {0: 0})
    figures = view.path_figures(0)
    assert figures.base_rtt_ns == 70_000
    if hardware:
        assert not asked
        assert figures.base_tx_ns is None
    else:
        assert asked[-1] == ("h1", 11 * SECOND + 9 * SECOND // 10 + 90_000)
        assert (figures.base_tx_ns, figures.base_rx_ns, figures.bound_ns) == (50_000, 20_000, 3000)


def test_an_offset_of_other_clocks_than_those_that_stamp_is_left_out():
    """A way of less than nothing: a clock service over a virtual clock, or one that was set."""
    path, alone = PathDelay(), PathDelay()
    for second in range(1, 30):
        came = list(exchanges(second))
        far = Reading(10**6 + 300_000 + 30_000 * second, 3000)
        assert path.step(came, reading=far) == alone.step(came)
    assert path.asymmetry_ns is None
    path.step(list(exchanges(31)), reading=Reading(10**6, 3000))
    assert path.asymmetry_ns == pytest.approx(15_000)


def test_without_fabric_time_the_ways_are_not_known_any_more():
    path = PathDelay()
    for second in range(1, 12):
        path.step(list(exchanges(second)), reading=Reading(10**6, 3000))
    assert path.asymmetry_ns == pytest.approx(15_000)
    path.step(list(exchanges(12)))
    assert path.asymmetry_ns is None
