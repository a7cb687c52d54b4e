"""Rows of the backends' comparison."""

from bench.migrate.backend import rows


def test_the_ratio_is_that_of_the_rounds():
    taken = {
        "gloo": {"reduce_ms": [100.0, 300.0, 90.0], "vote_us": [10.0, 30.0, 20.0]},
        "plugin": {"reduce_ms": [125.0, 250.0, 100.0], "vote_us": [40.0, 20.0, 50.0]},
    }
    throughput, vote = rows(taken)
    assert throughput.got == 0.9  # of 0.8, 1.2 and 0.9
    assert throughput.ok
    assert (vote.got, vote.peer, vote.ok) == (40.0, 20.0, None)
