"""The demo's count of steps that a rank applied twice or never."""

import pytest

from lab.demo.training.sources import Progress, Step


def rows(*pairs):
    return [
        Step(t_ns=at, step=step, loss=1.0, rank=0, generation=1, host="h0", pid=pid)
        for at, (step, pid) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("pairs", "wrong"),
    [
        (((1, 7), (2, 7), (3, 7)), 0),
        (((1, 7), (2, 7), (2, 7), (3, 7)), 1),  # twice
        (((1, 7), (3, 7)), 1),  # never
        (((2, 7), (3, 7)), 1),  # the first one never
        (((1, 7), (3, 8)), 0),  # process 8 began with the state after step 2
        (((1, 7), (4, 8)), 1),
        (((1, 7), (2, 7), (2, 8), (3, 8)), 1),
    ],
)
def test_steps_twice_or_never(tmp_path, pairs, wrong):
    assert Progress(tmp_path, rows(*pairs)).doubled_or_missing(1) == wrong
