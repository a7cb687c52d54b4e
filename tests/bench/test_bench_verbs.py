"""Rows of ``bench verbs`` from made-up rounds."""

from bench.verbs import Measured, row


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
