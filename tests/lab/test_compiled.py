"""Loops with torch.compile: exact after a takeover, or refused and named. Never another result."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import RANKS, environment, struck, weights

from fabric_train.rank import compiled

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("compiled_loop.py")
STEPS = 16
MOMENTS = ("3:3:forward", "1:7:backward", "2:10:gate", "0:13:optimizer")


def train(directory, what, *faults, backend="aot_eager", spares=1):
    directory.mkdir()
    args = ["--standalone", "--nproc-per-node", str(RANKS), "--spares", str(spares), str(SCRIPT)]
    return subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args, what, backend, str(STEPS),
         str(directory)],
        env=environment(*faults, TORCHINDUCTOR_CACHE_DIR=str(directory.parent / "cache")),
        cwd=directory, check=False, capture_output=True, text=True, timeout=800,
    )  # fmt: skip


def assert_exact(tmp_path, what, moments, **options):
    calm = train(tmp_path / "calm", what, spares=0, **options)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", what, *moments, **options)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in moments}
    assert weights(tmp_path / "job") == weights(tmp_path / "calm")
    return done


@pytest.mark.parametrize(
    ("what", "moments"),
    [
        ("ddp", MOMENTS[1:3]),
        ("collectives", MOMENTS[:2]),
        pytest.param("step", MOMENTS, marks=pytest.mark.nightly),
        pytest.param("fsdp", MOMENTS, marks=pytest.mark.nightly),
    ],
)
def test_compiled_graphs_are_taken_over_bit_by_bit(tmp_path, what, moments):
    done = assert_exact(tmp_path, what, moments)
    assert "more graph" not in done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("what", ["ddp", "collectives", "fsdp", "step"])
def test_so_are_those_of_inductor(tmp_path, what):
    assert_exact(tmp_path, what, MOMENTS, backend="inductor")


def test_graphs_that_the_loop_compiles_anew_are_named(tmp_path):
    done = train(tmp_path / "job", "shapes")
    assert done.returncode == 0, done.stderr
    assert "fabric_train: UNPROTECTED: torch.compile has compiled" in done.stderr


@pytest.mark.nightly
def test_a_compiled_gate_is_refused_and_named(tmp_path):
    done = train(tmp_path / "job", "whole")
    assert done.returncode == 1
    assert compiled.REFUSAL in done.stderr
