"""Groups and states that nobody protects are refused with their reason: real ranks."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import environment

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("refused_groups.py")
OTHER = "process groups besides the default one are not protected"
SHARDED = "a ZeroRedundancyOptimizer is sharded (ZeroRedundancyOptimizer)"


def test_other_process_groups_and_sharded_state_are_refused_and_the_job_may_go_on(tmp_path):
    args = ["--standalone", "--nproc-per-node", "2", "--spares", "0", str(SCRIPT)]
    done = subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args], env=environment(), cwd=tmp_path,
        check=False, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("group", "gloo", "mesh", "fsdp"):
        assert done.stderr.count(f"{name}: {OTHER}") == 2, done.stderr
    assert done.stderr.count(f"zero: optimizer: {SHARDED}") == 2, done.stderr
