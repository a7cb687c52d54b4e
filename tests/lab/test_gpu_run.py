"""The GPU run's orchestration, with fabric-perf in place of NCCL: all but the GPU is real."""

import sys
from pathlib import Path

import pytest

from lab.gpu.run import judge, run_job
from lab.node import REPO


def stand_in() -> list[str]:
    return [sys.executable, str(REPO / "tests" / "lab" / "gpu_stand_in.py")]


@pytest.mark.nightly
def test_a_rail_flaps_underneath_and_the_bits_are_compared(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = cluster(hosts=2, rails=2, rate="200mbit")
    ours = {"worker": stand_in, "uses_plugin": lambda log: "plugin FABRIC" in log}
    reference = run_job(lab, tmp_path / "a", "Simple", seconds=0.0, faults=False, **ours)
    disturbed = run_job(lab, tmp_path / "b", "Simple", seconds=6.0, faults=True, **ours)
    assert disturbed.statuses == (0, 0)
    report = judge("Simple", reference, disturbed)
    assert report.verdict.wrong == ()
    assert report.ok
    assert report.flaps >= 3
    assert report.failovers >= 1
    # A run that nothing happened to proves nothing.
    assert "disturbed: no rail went down" in judge("Simple", reference, reference).verdict.wrong
    # Other bits are found.
    monkeypatch.setenv("FABRIC_STAND_IN", "wrong")
    wrong = run_job(lab, tmp_path / "c", "Simple", seconds=0.0, faults=False, **ours)
    found = judge("Simple", reference, wrong).verdict.wrong
    assert any("rank 1: round 4" in text and "other bits" in text for text in found), found


def test_a_rank_that_does_not_start_is_named(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_STAND_IN", "die")
    lab = cluster(hosts=2, rails=2)
    with pytest.raises(RuntimeError, match=r"rank \d ended before it was ready:\s+told to"):
        run_job(lab, tmp_path / "a", "LL", seconds=0.0, faults=False, worker=stand_in)
