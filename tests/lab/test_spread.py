"""Experts that live on one rank each, and checkpoints of DCP, in loops whose ranks are killed."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import environment, struck

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("spread_loop.py")
RANKS = 2
STEPS = 9


def train(directory, *faults, spares=1, **more):
    directory.mkdir()
    args = ["--standalone", "--nproc-per-node", str(RANKS), "--spares", str(spares), str(SCRIPT)]
    return subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args, str(STEPS), str(directory)],
        env=environment(*faults, **more), cwd=directory, check=False, capture_output=True,
        text=True, timeout=500,
    )  # fmt: skip


def weights(directory):
    return [(directory / f"weights.{rank}").read_text() for rank in range(RANKS)]


def same_as_undisturbed(tmp_path, *faults, **more):
    calm = train(tmp_path / "calm", spares=0, **more)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", *faults, **more)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == weights(tmp_path / "calm"), done.stderr
    assert len(set(weights(tmp_path / "job"))) == RANKS


def test_an_expert_that_one_rank_has_alone_is_rebuilt(tmp_path):
    same_as_undisturbed(tmp_path, "1:2:forward", "0:4:gate", "1:6:optimizer", WHAT="experts")


def test_a_checkpoint_of_dcp_behind_the_step_is_refused(tmp_path):
    done = train(tmp_path / "job", spares=0, WHAT="outside")
    assert done.returncode == 1, done.stderr
    assert "a collective between optimizer.step() and the next attempt" in done.stderr


def test_a_checkpoint_that_is_saved_beside_the_loop_is_refused_by_torch(tmp_path):
    """It wants a group with a CPU backend of torch's own; a job's group names none."""
    done = train(tmp_path / "job", spares=0, WHAT="async")
    assert done.returncode == 1, done.stderr
    assert "A CPU backend must be enabled for async save" in done.stderr
