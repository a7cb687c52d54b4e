"""The demo as a user starts it: release build, real daemons, real packets."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.network import netns

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "build" / "release" / "nccl_plugin" / "libnccl-net-fabric.so"


def start(tmp_path, *arguments, act="1"):
    assert RELEASE.exists(), "the demo runs on the release build: ./run build release"
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lab.demo",
            "--plain",
            "--out",
            str(tmp_path),
            "--act",
            act,
            *arguments,
        ],
        cwd=ROOT,
        env=os.environ | {"FABRIC_BUILD": "release", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell without job control starts what is in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def left_over(pid):
    """Namespaces and directory of the demo of that process."""
    names = [name for name in netns.listing("fl-") if f"demo-{pid}" in name]
    return names, Path(f"/run/fabric-lab/demo-{pid}").exists()


@pytest.mark.alone  # the verdict judges speed
@pytest.mark.timeout(420)
def test_five_faults_and_the_job_does_not_notice(tmp_path):
    began = time.monotonic()
    demo = start(tmp_path)
    output, _ = demo.communicate(timeout=400)
    took = time.monotonic() - began
    print(output)
    # The verdict judges every figure, tests/unit/lab/test_demo_verdict.py the verdict.
    assert demo.returncode == 0, output[-3000:]
    assert "0 errors, 0 corrupt bytes" in output
    assert took <= 100
    assert left_over(demo.pid) == ([], False)

    result = json.loads((tmp_path / "latest" / "result.json").read_text())
    assert [fault["kind"] for fault in result["faults"]] == [
        "carrier", "flap", "blackhole", "carrier", "carrier",
    ]  # fmt: skip
    for fault in result["faults"]:
        assert fault["flaps_seen"] == fault["flaps_injected"]
    assert [fault["flaps_injected"] for fault in result["faults"]] == [1, 20, 0, 2, 2]
    # The two neighbours had only a cross-rail path on the rails that they lost.
    *others, last = (fault["crossing"] for fault in result["faults"])
    assert others == [None] * 4
    assert (last["source"], last["target"]) == ("h1:rail3", "h2:rail0")
    assert last["bytes"] > 1_000_000
    report = (tmp_path / "latest" / "report.html").read_text()
    assert f"report: {(tmp_path / 'latest').resolve() / 'report.html'}" in output
    assert "0 errors, 0 corrupt bytes" in report


@pytest.mark.timeout(260)
def test_without_failover_the_job_dies_of_a_transport_error(tmp_path):
    demo = start(tmp_path, "--no-failover")
    output, _ = demo.communicate(timeout=240)
    print(output)
    assert demo.returncode == 0, output[-3000:]
    assert "failover off: NIC unplugged" in output
    assert "the job is dead" in output
    assert left_over(demo.pid) == ([], False)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_second_act_nic_rank_and_host_are_lost_and_no_step_is(tmp_path):
    demo = start(tmp_path, act="2")
    output, _ = demo.communicate(timeout=580)
    print(output)
    assert demo.returncode == 0, output[-5000:]
    assert "the weights are those of the undisturbed run of the same seed" in output.replace(
        "\n", " "
    )
    assert left_over(demo.pid) == ([], False)
    result = json.loads((tmp_path / "latest" / "training.json").read_text())
    assert result["failures"] == []
    assert [one["steps lost"] for one in result["strikes"]] == ["0"] * 5
    moved = [one["moved"] for one in result["strikes"]]
    assert moved[:3] == ["nobody", "rank 0 → h0", "rank 2 → h4"]
    assert moved[3:] == ["rank 3 → h2", "rank 2 → the spare"]
    assert len(set(result["shards"].values())) == 4  # no rank has what another one has
    assert result["shards"] == result["undisturbed_shards"]
    assert "A host dies, the job does not" in (tmp_path / "latest" / "training.html").read_text()


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_without_failover_a_killed_rank_ends_the_job(tmp_path):
    demo = start(tmp_path, "--no-failover", act="2")
    output, _ = demo.communicate(timeout=380)
    print(output)
    assert demo.returncode == 0, output[-5000:]
    assert "failover off: the job died of: rank killed (h0)" in output
    assert left_over(demo.pid) == ([], False)


def test_ctrl_c_leaves_nothing(tmp_path):
    demo = start(tmp_path)
    assert demo.stdout is not None
    assert any("the job runs" in line for line in demo.stdout)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=240)
    assert demo.returncode == 130, output
    assert left_over(demo.pid) == ([], False)


def test_a_run_that_fits_no_fault_is_refused(tmp_path):
    demo = start(tmp_path, "--seconds", "3")
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 2
    assert "too short" in output
