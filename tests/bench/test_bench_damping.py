"""How many published transitions fall into ten minutes, of a run that takes longer."""

import pytest

from bench.detect.live_damping import most_within


@pytest.mark.parametrize(
    ("times", "most"),
    [([], 0), ([5], 1), ([5, 20, 25, 700], 3), ([5, 20, 25, 604], 4), ([5, 20, 25, 605], 3)],
)
def test_the_most_within_any_window(times, most):
    assert most_within(times, 600) == most
