"""Megatron-core, tensor parallel or with the distributed optimizer: ranks that die change nothing.

What has to come out on each rank is what comes out undisturbed: SHA-256 of parameters, main
parameters and optimizer state, the schedule, and Megatron's own random generators.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from test_takeover import struck

from lab.node import REPO
from lab.supply.own_venv import own_python

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).with_name("megatron_loop.py")
RANKS = 4
STEPS = 14
KINDS = {
    "tensor": ["--tensor-parallel", "2"],
    "tensor-bf16": ["--tensor-parallel", "2", "--bf16", "--overlap"],
    "instances": ["--instances", "2"],
    "instances-bf16": ["--instances", "2", "--bf16"],
}
"""Options of examples/train_megatron.py: TP 2 x DP 2, or DP 4 as two instances of two shards."""
MOMENTS = (
    ("3:2:forward", "0:4:backward", "2:6:step", "1:8:forward", "3:10:backward", "0:12:step"),
    ("1:1:step", "2:3:clip", "0:5:forward", "3:7:after", "1:9:backward", "2:11:step"),
)
GATHERS = [("1:3:gather", "0:6:forward", "2:9:gather")]


@pytest.fixture(scope="module")
def python():
    return own_python("megatron")


def train(python, directory, options, *faults, spares=2, **more):
    directory.mkdir()
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": path, "FAULTS": ",".join(faults)}
    argv = [python, "-m", "fabric_train.run", "--standalone", "--nproc-per-node", str(RANKS)]
    argv += ["--spares", str(spares), SCRIPT, str(STEPS), directory, *options]
    return subprocess.run(
        argv, env=environment | {"OMP_NUM_THREADS": "1"} | more, cwd=directory, check=False,
        capture_output=True, text=True, timeout=1700,
    )  # fmt: skip


def weights(directory):
    return [(directory / f"weights.{rank}").read_text() for rank in range(RANKS)]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_killed_in_any_phase_change_nothing(python, tmp_path, kind):
    calm = train(python, tmp_path / "calm", KINDS[kind], spares=0)
    assert calm.returncode == 0, calm.stderr
    assert len(set(weights(tmp_path / "calm"))) == RANKS  # generators are each rank's own
    assert calm.stderr.count("UNPROTECTED:") == calm.stderr.count("UNPROTECTED: all state against")
    for place, faults in enumerate([*MOMENTS, *GATHERS * kind.startswith("instances")]):
        directory = tmp_path / f"job{place}"
        done = train(python, directory, KINDS[kind], *faults)
        assert done.returncode == 0, done.stderr
        assert struck(directory) == {fault.replace(":", "-") for fault in faults}
        assert weights(directory) == weights(tmp_path / "calm"), done.stderr


def test_a_shard_of_the_optimizer_that_is_lost_with_its_copy_ends_the_job_and_is_named(
    python, tmp_path
):
    done = train(python, tmp_path / "job", KINDS["instances"], "0:4:backward", "2:4:backward")
    assert done.returncode == 128 + signal.SIGKILL, done.stderr  # as the lost ranks ended
    assert "after step 4 has no live copy (its replicas: [0, 2]" in done.stderr
    assert not [*(tmp_path / "job").glob("weights.*")]


def test_a_distributed_optimizer_of_one_instance_is_refused_by_name(python, tmp_path):
    done = train(python, tmp_path / "job", ["--instances", "1"], spares=0)
    assert done.returncode == 1
    assert (
        "so no other rank has a copy of a shard of it: num_distributed_optimizer_in" in done.stderr
    )


def test_a_loop_that_adds_up_gradients_over_attempts_is_told(python, tmp_path):
    done = train(python, tmp_path / "job", KINDS["tensor"], spares=0, ADDS="1")
    assert done.returncode == 1
    assert "a backward pass adds to gradients of the attempt before" in done.stderr
