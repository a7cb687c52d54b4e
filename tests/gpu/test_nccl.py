"""Real NCCL over the plugin on a GPU, a path flapping underneath: every bit as without faults.

Runs on a machine with a GPU only (docs/design/checks.md, "Real NCCL"): ``pytest tests/gpu -m gpu``.
"""

from pathlib import Path

import pytest

from lab.gpu.machine import look
from lab.gpu.plan import PROTOCOLS, missing
from lab.gpu.run import run_protocol

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def machine() -> None:
    reason = missing(look())
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bit_for_bit(machine: None, cluster, tmp_path: Path, protocol: str) -> None:
    lab = cluster(hosts=2, rails=2, rate="2gbit")
    report = run_protocol(lab, tmp_path / protocol, protocol, seconds=20.0)
    assert report.verdict.wrong == ()
    assert report.rounds > 3
