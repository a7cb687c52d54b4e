"""A rank of a real job that is slowed by 15 % is named within a minute, and nobody else is.

Real ranks over gloo on loopback, fabric-run and fabricd of two hosts, mosquitto, fabric-compute.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from broker_lab import until
from compute_world import REPO
from training_site import jobs, ledger, logs, training_site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
HALF_AN_HOUR_S = 1800.0

SCRIPT = Path(__file__).with_name("uneven_loop.py")
SLOW = 2
NAMED_S = 60.0
HEALTHY_S = 40.0


def fabricctl(daemon, *words):
    done = subprocess.run(
        [sys.executable, "-m", "fabricd.cli", *words, "--socket", str(daemon.run_dir / "ctl.sock")],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
async def site(tmp_path):
    async with training_site(tmp_path, SCRIPT) as (compute, daemons, out, runs):
        yield compute, daemons, out
        assert all(run.returncode is None for run in runs), logs(out)


def slow_metric(compute):
    return {
        name: value
        for name, value in compute.metrics().items()
        if name.startswith("fabric_compute_slow_rank_ratio")
    }


@pytest.mark.nightly
@pytest.mark.timeout(HALF_AN_HOUR_S + 400)
async def test_nobody_is_named_in_half_an_hour_of_uneven_steps(site):
    compute, _, out = site
    until_s = time.monotonic() + HALF_AN_HOUR_S
    while time.monotonic() < until_s:
        await asyncio.sleep(30)
        assert slow_metric(compute) == {}, ledger(compute, "slow_rank")
    assert ledger(compute, "slow_rank") == []
    (out / "slow").write_text(str(SLOW))  # it was not deaf
    await until(lambda: slow_metric(compute), "named in the metric", NAMED_S)
    [row] = ledger(compute, "slow_rank")
    assert row["rank"] == SLOW


@pytest.mark.nightly
async def test_a_rank_that_is_slowed_by_15_percent_is_named_and_cleared(site):
    compute, daemons, out = site
    await asyncio.sleep(HEALTHY_S)
    assert slow_metric(compute) == {}
    (out / "slow").write_text(str(SLOW))
    began = time.monotonic()
    await until(lambda: slow_metric(compute), "named in the metric", 2 * NAMED_S)
    took = time.monotonic() - began
    host = f"h{SLOW // 2}" if jobs(compute)["ranks"][str(SLOW)].startswith("h1") else "h0"
    [(sample, ratio)] = slow_metric(compute).items()
    assert f'rank="{SLOW}"' in sample
    assert 1.08 < ratio < 1.25
    assert f'host="{host}"' in sample
    print(f"named after {took:.1f} s, ratio {ratio}")
    assert took <= NAMED_S

    [row] = ledger(compute, "slow_rank")
    assert (row["rank"], row["host"], row["state"]) == (SLOW, host, "named")
    sentence = f"rank {SLOW} on {host} is slow: "
    assert sentence in compute.call("jobs")
    assert sentence in compute.call("explain", host)
    for daemon in daemons:
        await until(lambda d=daemon: d.ask("timeline", kind="slow_rank"), "told on the timeline")
        assert sentence in fabricctl(daemon, "timeline", "--kind", "slow_rank", "-o", "wide")
        [job] = json.loads(fabricctl(daemon, "jobs", "--json"))["jobs"]
        assert job["slow_ranks"][0].startswith(sentence)
    assert time.monotonic() - began <= NAMED_S + 20

    (out / "slow").unlink()
    await until(lambda: not slow_metric(compute), "cleared", 2 * NAMED_S)
    assert [row["state"] for row in ledger(compute, "slow_rank")] == ["named", "cleared"]
    assert ledger(compute, "fence") == []
    assert ledger(compute, "recovery") == []
    assert jobs(compute)["generation"] == 1
