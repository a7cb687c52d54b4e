"""Real NCCL over the plugin on a GPU, a path flapping underneath: every bit as without faults.

Runs on a machine with a GPU only (docs/design/checks.md, "Real NCCL"): ``pytest tests/gpu -m gpu``.
"""

from pathlib import Path

import pytest

from fabricd.cli import client
from lab.cluster import Cluster, wait_until
from lab.gpu.machine import look
from lab.gpu.plan import PROTOCOLS, missing
from lab.gpu.run import run_protocol

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

READY_S = 60.0


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


def ask(lab: Cluster, op: str, **request: object) -> list:
    return [client.request(node.run_dir / "ctl.sock", {"op": op, **request}) for node in lab.nodes]


def ready(lab: Cluster) -> bool:
    try:
        links = [link for answer in ask(lab, "links") for link in answer]
    except client.DaemonError:
        return False
    paths = [path for link in links for path in link["paths"]]
    return bool(paths) and all(one["state"] == "up" for one in [*links, *paths])


def test_bit_for_bit_while_the_daemons_steer(machine: None, cluster, tmp_path: Path) -> None:
    lab = cluster(hosts=2, rails=2, rate="2gbit")
    # A link is steered back between two flaps: away and back, all the time.
    lab.start_daemons(mode="steer", hold={"hold_down_s": 0.1, "probation_s": 0.2})
    wait_until(lambda: ready(lab), READY_S, "all hear each other")
    report = run_protocol(lab, tmp_path / "steered", "Simple", seconds=20.0)
    assert report.verdict.wrong == ()
    assert report.rounds > 3
    steered = ask(lab, "timeline", kind="steer", limit=10_000)
    assert all(steered), "each host steered its job"
    for node in lab.nodes:
        assert not node.dead
