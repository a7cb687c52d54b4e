"""Bounds contain the truth in worlds that nobody has seen before."""

import os

import pytest

from bench.clock.bounds import SCENARIOS, look

CHECKS = 100_000


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_bound_is_missed_in_worlds_of_another_seed(name):
    """The bench has the same worlds each time; lab/nightly.py takes others each time."""
    found = look(SCENARIOS[name], CHECKS, int(os.environ["FABRIC_SEED"]))
    assert found.checks >= CHECKS
    assert not found.missed, "seed, true time in s, host, error, bound of each"
