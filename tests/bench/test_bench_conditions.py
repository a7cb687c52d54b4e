"""The stories of the part *conditions*: one of each kind, and how they are counted."""

from __future__ import annotations

import pytest

from bench.detect.conditions import Answer, judge, rows, table
from bench.detect.delay_world import TRUTH, WAY, Kind, World
from fabricd.delay.condition import Condition

SEED: dict[Kind, int] = {}
for seed in range(400):
    SEED.setdefault(World.make(seed).kind, seed)


@pytest.mark.parametrize("kind", list(Kind))
def test_one_story_of_each_kind(kind):
    answer = judge(SEED[kind])
    assert answer.kind is kind
    assert answer.said is TRUTH.get(kind, Condition.FINE)
    assert answer.way == WAY.get(kind, "")
    assert not answer.others


def answer(kind, said, way="", others=()):
    return Answer(1, kind, said, way, others, 3.0, 0)


def test_every_error_counts():
    answers = [
        answer(Kind.QUIET, Condition.FINE),
        answer(Kind.SLOW, Condition.CONGESTED),
        answer(Kind.INCAST, Condition.CONGESTED, "tx"),
        answer(Kind.GRAY, Condition.BROKEN, others=("rail2 slow",)),
    ]
    got = {row.name: row.got for row in rows(answers)}
    assert got["fine, slow, congested and broken told apart"] == 50
    assert got["slow rails called so"] == 0
    assert got["broken rails called so"] == 100
    assert got["direction of congestion"] == 0
    text = table(answers)
    assert "| slow NIC | slow | 1 | 0 | 1 | 0 | 0 | 0 |" in text
    assert "others rail2 slow" in text
