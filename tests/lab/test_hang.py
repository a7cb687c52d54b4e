"""A rank that hangs in its own code, and one that is stopped, lose the job no step.

Real ranks over gloo on loopback, fabric-run and fabricd of two hosts, mosquitto, fabric-compute.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from broker_lab import until
from compute_world import REPO
from training_site import RANKS, ledger, logs, training_site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(500)]

SCRIPT = Path(__file__).with_name("hang_loop.py")
HANG_S = 5
"""Below that in which all ranks evaluate, above that in which one does."""
STOPPED_FROM = 80
END_S = 240.0


def hashes(out):
    return [(out / f"end.{rank}").read_text() for rank in range(RANKS)]


def undisturbed(out):
    """What comes out of the same script where no rank hangs."""
    out.mkdir()
    (out / "undisturbed").touch()
    subprocess.run(
        [sys.executable, "-m", "fabric_train.run", "--standalone", "--nproc-per-node", str(RANKS),
         "--spares", "0", str(SCRIPT), str(out)],
        env={**os.environ, "PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=REPO, check=True, timeout=END_S,
    )  # fmt: skip
    return hashes(out)


def step(out):
    try:
        return int((out / "step").read_text() or 0)
    except FileNotFoundError:
        return 0


@pytest.mark.nightly
async def test_a_rank_that_hangs_is_replaced_and_one_that_evaluates_is_not(tmp_path):
    more = {"FABRIC_TRAIN_HANG_S": str(HANG_S)}
    async with training_site(tmp_path, SCRIPT, standby=1, more=more) as (compute, _, out, runs):
        await until(lambda: step(out) >= STOPPED_FROM, "the hang is over", END_S)
        stopped = 1
        pid = int((out / f"rank.{stopped}").read_text())
        os.kill(pid, signal.SIGSTOP)
        await asyncio.wait_for(asyncio.gather(*(run.wait() for run in runs)), END_S)
        assert [run.returncode for run in runs] == [0] * len(runs), logs(out)
        recoveries = ledger(compute, "recovery")
        assert [one["ranks"] for one in recoveries] == [[2], [stopped]], recoveries
        assert "hangs: it works without a collective, for 5 s" in recoveries[0]["reason"]
        assert "hangs: it is stopped by a signal, for 5 s" in recoveries[1]["reason"]
        assert [one["steps_lost"] for one in recoveries] == [0, 0]
        assert ledger(compute, "fence") == []
        assert hashes(out) == undisturbed(tmp_path / "undisturbed")
