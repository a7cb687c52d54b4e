"""ZeRO of DeepSpeed, its ranks killed at any moment: buddies keep what each of them holds alone.

What has to come out is what DeepSpeed gives under torchrun, without a line of ours: SHA-256 of
partitions, optimizer state and parameters, on each rank.
"""

import os
import subprocess
from pathlib import Path

import pytest
from test_takeover import struck

from lab.node import REPO
from lab.supply.own_venv import own_python

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("deepspeed_loop.py")
STEPS = 12
MOMENTS = ("1:2:forward", "0:4:backward", "1:6:gate", "0:8:behind")
WITH = [
    {"STAGE": "1"},
    {"STAGE": "2"},
    {"STAGE": "3"},
    {"STAGE": "3", "PRECISION": "bf16", "MICRO": "2"},
]


@pytest.fixture(scope="module")
def python():
    return own_python("deepspeed")


def run(argv, directory, ranks, **more):
    directory.mkdir()
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **more}
    argv = [*argv, "--nproc-per-node", str(ranks), SCRIPT, str(STEPS), directory]
    return subprocess.run(
        argv, env=os.environ | environment, cwd=directory, check=False,
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip


def by_torchrun(python, directory, ranks, **more):
    argv = [python, "-m", "torch.distributed.run"]
    done = run(argv, directory, ranks, PLAIN="1", **more)
    assert done.returncode == 0, done.stderr
    return weights(directory, ranks)


def protected(python, directory, *faults, ranks=2, spares=2, **more):
    argv = [python, "-m", "fabric_train.run", "--standalone", "--spares", str(spares)]
    return run(argv, directory, ranks, FAULTS=",".join(faults), **more)


def weights(directory, ranks):
    return [(directory / f"weights.{rank}").read_text() for rank in range(ranks)]


@pytest.mark.parametrize("how", WITH, ids=lambda how: "-".join(how.values()))
def test_what_comes_out_is_what_deepspeed_gives_undisturbed(python, tmp_path, how):
    calm = by_torchrun(python, tmp_path / "calm", 2, **how)
    done = protected(python, tmp_path / "job", *MOMENTS, **how)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in MOMENTS}
    assert weights(tmp_path / "job", 2) == calm, done.stderr
    assert len(set(calm)) == 2
