"""A rank is killed while the workers of its DataLoader live on: the job is taken over as usual.

The workers are forks of the rank, without exec: the kernel would go on for them with the rank's
connections and listeners, so that no peer would notice the death.
"""

import os
import subprocess
from pathlib import Path

import pytest
import test_takeover
from test_plugin_backend import variables
from test_takeover import RANKS, alive, records, weights

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600), pytest.mark.xdist_group("takeover")]

SCRIPT = Path(__file__).with_name("loader_loop.py")
STEPS = 30
VICTIM, STRUCK_AT = 1, 12
TAKEN_OVER_S = 30.0
"""Within a second or two on a machine at rest. Far below FABRIC_DEADLINE and HANG_S, which would
end the wait without the plugin's doing."""


def train(directory, *words, spares):
    directory.mkdir()
    command = test_takeover.command(directory, steps=STEPS, spares=spares)
    command[command.index(str(test_takeover.SCRIPT))] = str(SCRIPT)
    environment = variables(FABRIC_RUN_DIR=str(directory), NCCL_SOCKET_IFNAME="lo")
    # Not a pipe: the workers would hold it open.
    with (directory / "log").open("w") as log:
        done = subprocess.run(
            [*command, *words], env=test_takeover.environment(**environment), cwd=directory,
            check=False, stdout=log, stderr=log, timeout=500,
        )  # fmt: skip
    assert done.returncode == 0, (directory / "log").read_text()
    return directory


@pytest.mark.nightly
def test_a_rank_killed_while_its_workers_hang_is_taken_over_in_the_usual_time(tmp_path):
    undisturbed = weights(train(tmp_path / "undisturbed", spares=0))
    job = tmp_path / "job"
    try:
        train(job, str(VICTIM), str(STRUCK_AT), spares=1)
        workers = [int(path.suffix[1:]) for path in job.glob("hangs.*")]
        assert len(workers) == 4
        assert all(alive(worker) for worker in workers), "they held what they had all the time"
    finally:
        for path in job.glob("hangs.*"):
            os.kill(int(path.suffix[1:]), 9)
    assert weights(job) == undisturbed
    assert [row["ranks"] for row in records(job)] == [[VICTIM]]
    own, shared = (int(word) for word in (job / "sockets").read_text().split())
    assert own > 0
    assert shared == 0  # of the rank's connections and listeners, in any worker
    struck = int((job / "struck").read_text())
    again = [int((job / f"again.{rank}").read_text()) for rank in range(RANKS)]
    took = (max(again) - struck) / 1e9
    print(f"all ranks have taken the step {took:.2f} s after the death")
    assert took < TAKEN_OVER_S
