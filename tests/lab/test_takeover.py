"""A rank dies, the job does not: real training processes, gloo, and fabric-run --standalone.

What has to come out is what comes out undisturbed, bit by bit: weights, optimizer state, batch
norm's statistics of each rank, learning rate.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.node import REPO

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("train_loop.py")
RANKS = 4
STEPS = 40


def command(directory, *, steps=STEPS, spares=1):
    args = ["--standalone", "--nproc-per-node", str(RANKS), "--spares", str(spares)]
    args += ["--records", str(directory / "records.json"), str(SCRIPT), str(steps), str(directory)]
    return [sys.executable, "-m", "fabric_train.run", *args]


def environment(*faults, **more):
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path, "FAULTS": ",".join(faults), **more}


def train(directory, *faults, more=None, **options):
    directory.mkdir()
    return subprocess.run(
        command(directory, **options), env=environment(*faults, **(more or {})),
        cwd=directory, check=False, capture_output=True, text=True, timeout=500,
    )  # fmt: skip


def weights(directory):
    return [(directory / f"weights.{rank}").read_text() for rank in range(RANKS)]


def records(directory):
    return json.loads((directory / "records.json").read_text())


def struck(directory):
    return {path.name.removeprefix("struck.") for path in directory.glob("struck.*")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed") / "job"
    done = train(directory, spares=0)
    assert done.returncode == 0, done.stderr
    assert records(directory) == []
    return weights(directory)


MOMENTS = {"0:0:optimizer": 1, "2:13:forward": 13, "3:19:optimizer": 20, "1:25:error": 25}
"""Faults, and the step that the job goes on with: ranks 0 and 3 die when the others can apply
their step, which is not run again then."""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_ranks_killed_at_any_moment_of_a_step_change_nothing(undisturbed, tmp_path, count):
    faults = list(MOMENTS)[:count]
    done = train(tmp_path / "job", *faults)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == undisturbed
    found = records(tmp_path / "job")
    assert [row["ranks"] for row in found] == [[int(fault.split(":")[0])] for fault in faults]
    assert [row["step"] for row in found] == [MOMENTS[fault] for fault in faults]
    assert all(row["lost_at"] <= row["recovered_at"] <= row["committed_at"] for row in found)


@pytest.mark.nightly
def test_losses_during_a_recovery_change_nothing(undisturbed, tmp_path):
    """The source dies while it sends; what then arrives is corrupt, twice; two die at once."""
    faults = ("0:5:backward", "1:-1:sending", "0:-1:corrupting", "0:-1:misleading",
              "0:20:forward", "3:20:forward")  # fmt: skip
    done = train(tmp_path / "job", *faults, spares=2)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    for what in ("chunk", "what rank"):
        assert f"the state that arrived is refused: {what}" in done.stderr
    assert weights(tmp_path / "job") == undisturbed


@pytest.mark.nightly
def test_connections_that_fail_without_a_loss_are_made_anew(undisturbed, tmp_path):
    done = train(tmp_path / "job", "2:11:disconnected", spares=0)
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "job") == undisturbed
    (record,) = records(tmp_path / "job")
    assert (record["ranks"], record["reason"]) == ([], "connections failed")


@pytest.mark.nightly
def test_a_rank_that_holds_its_interpreter_when_another_is_lost_changes_nothing(
    undisturbed, tmp_path
):
    """It can neither hear of the loss nor end its connections; its peers do not need it to."""
    done = train(tmp_path / "job", "2:9:locked", "1:9:forward")
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {"2-9-locked", "1-9-forward"}
    assert weights(tmp_path / "job") == undisturbed
    assert [(row["ranks"], row["step"]) for row in records(tmp_path / "job")] == [([1], 9)]


@pytest.mark.nightly
def test_an_error_that_every_process_of_a_rank_makes_ends_the_job(tmp_path):
    done = train(tmp_path / "job", "1:9:always")
    assert done.returncode == 1
    assert "5 recoveries without a step forward" in done.stderr
    assert "rank 1: left its loop before the job had ended" in done.stderr


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
def test_no_process_outlives_its_fabric_run(tmp_path, number):
    job = tmp_path / "job"
    job.mkdir()
    with subprocess.Popen(
        command(job, steps=100_000), env=environment(PAUSE_S="0.05"), cwd=job,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        children = wait_for_children(job, RANKS + 1)
        process.send_signal(number)
        assert process.wait(60) in (1, -number)
    deadline = time.monotonic() + 60
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)


def wait_for_children(job, count):
    """Pids of the processes of the job, when all are connected to their agent."""
    deadline = time.monotonic() + 120
    while len(pids := [int(path.suffix[1:]) for path in job.glob("joined.*")]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return pids


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--standalone", "missing.py"], "missing.py: no such file"),
        (["train.py"], "--standalone"),
        (["--standalone", "--nproc-per-node", "0", str(SCRIPT)], "at least one rank"),
    ],
)
def test_usage_is_status_2_and_says_what_is_wrong(args, text):
    run = [sys.executable, "-m", "fabric_train.run", *args]
    done = subprocess.run(run, env=environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_script_without_fabric_run_says_so(tmp_path):
    run = [sys.executable, str(SCRIPT), "1", str(tmp_path)]
    done = subprocess.run(run, env=environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "start this script with fabric-run" in done.stderr
