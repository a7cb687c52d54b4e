"""A rank that trains with NCCL dies, and a spare takes it over: every bit as undisturbed."""

from pathlib import Path

import pytest

from lab.gpu.machine import look
from lab.gpu.migrate import FAULTS, play
from lab.gpu.plan import missing

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_ranks_killed_at_any_moment_of_a_step_change_nothing(tmp_path: Path) -> None:
    reason = missing(look())
    if reason:
        pytest.skip(reason)
    undisturbed = play(tmp_path / "undisturbed", steps=60, faults=(), spares=0)
    disturbed = play(tmp_path / "disturbed", steps=60, faults=FAULTS, spares=1)
    assert disturbed.states == undisturbed.states
    assert [one.ranks for one in disturbed.recoveries] == [(1,), (0,), (1,)]
