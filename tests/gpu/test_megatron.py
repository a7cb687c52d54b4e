"""Megatron-core on a GPU, where nothing stands in for CUDA: ranks that die change nothing.

Two ranks share the GPU and sum over NCCL, as in ``test_migrate.py``.
"""

import os
import subprocess
from pathlib import Path

import pytest

from lab.gpu.machine import look, plugin
from lab.gpu.plan import missing
from lab.node import REPO
from lab.supply.own_venv import own_python

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

SCRIPT = REPO / "tests" / "lab" / "megatron_loop.py"
FAULTS = ("1:2:forward", "0:4:backward", "1:6:step")
KINDS = {
    "data": ["--tensor-parallel", "1", "--bf16"],
    "instances": ["--tensor-parallel", "1", "--instances", "2", "--bf16"],
}


def train(directory: Path, options: list[str], faults: tuple[str, ...], spares: int) -> list[str]:
    directory.mkdir()
    argv = [own_python("megatron"), "-m", "fabric_train.run", "--standalone", "--backend", "nccl"]
    argv += ["--nproc-per-node", "2", "--spares", str(spares), SCRIPT, "10", directory, *options]
    more = {
        "PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}", "FAULTS": ",".join(faults),
        "NCCL_NET": "FABRIC", "NCCL_NET_PLUGIN": str(plugin()), "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
        "FABRIC_RUN_DIR": str(directory), "OWN_NCCL_HOST": "1",
    }  # fmt: skip
    done = subprocess.run(
        argv, env=os.environ | more, cwd=directory, check=False, capture_output=True, text=True,
        timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(directory / f"weights.{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_killed_in_any_phase_change_nothing(tmp_path: Path, kind: str) -> None:
    reason = missing(look())
    if reason:
        pytest.skip(reason)
    calm = train(tmp_path / "calm", KINDS[kind], (), 0)
    assert train(tmp_path / "job", KINDS[kind], FAULTS, 1) == calm
    assert len([*(tmp_path / "job").glob("struck.*")]) == len(FAULTS)
