"""A step changes what is no tensor, and then a rank dies: exact, or refused when it happens."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import environment, records

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("changing_loop.py")
RANKS = 2


def train(directory, kind, **more):
    directory.mkdir()
    args = ["--standalone", "--nproc-per-node", str(RANKS), "--spares", "1"]
    args += ["--records", str(directory / "records.json"), str(SCRIPT), kind, str(directory)]
    return subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args], env=environment(**more), cwd=directory,
        check=False, capture_output=True, text=True, timeout=250,
    )  # fmt: skip


def states(directory):
    return [(directory / f"state.{rank}").read_text() for rank in range(RANKS)]


@pytest.mark.parametrize("kind", [
    pytest.param("unfreeze", marks=pytest.mark.nightly),
    pytest.param("groups", marks=pytest.mark.nightly),
    pytest.param("dropout", marks=pytest.mark.nightly),
])  # fmt: skip
def test_what_a_step_has_changed_is_as_undisturbed_after_a_takeover(tmp_path, kind):
    """Also an average of the weights with this rank's own statistics of batch norm."""
    undisturbed = train(tmp_path / "undisturbed", kind)
    assert undisturbed.returncode == 0, undisturbed.stderr
    done = train(tmp_path / "job", kind, KILL="40")
    assert done.returncode == 0, done.stderr
    assert "fabric_train: UNPROTECTED" not in done.stderr
    assert [(row["ranks"], row["step"]) for row in records(tmp_path / "job")] == [([1], 40)]
    expected = states(tmp_path / "undisturbed")
    assert expected[0] != expected[1]  # batch norm's statistics are of each rank
    assert states(tmp_path / "job") == expected


def test_a_hook_that_a_step_adds_ends_the_job_in_that_step_and_the_last_line_says_why(tmp_path):
    done = train(tmp_path / "job", "hook")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "0 forward hooks when the loop began, 1 now" in last, done.stderr
    assert last.startswith("fabric-run: job job failed: rank ")
    assert records(tmp_path / "job") == []
