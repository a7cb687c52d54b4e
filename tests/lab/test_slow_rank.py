"""A rank of a real job that is slowed by 15 % is named within a minute, and nobody else is.

Real ranks over gloo on loopback, fabric-run and fabricd of two hosts, mosquitto, fabric-compute.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from broker_lab import Daemon, until
from compute_world import REPO, Compute, Mosquitto

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
HALF_AN_HOUR_S = 1800.0

SCRIPT = Path(__file__).with_name("uneven_loop.py")
HOSTS, RANKS = 2, 4
SLOW = 2
NAMED_S = 60.0
HEALTHY_S = 40.0
START_S = 120.0


def fabricctl(daemon, *words):
    done = subprocess.run(
        [sys.executable, "-m", "fabricd.cli", *words, "--socket", str(daemon.run_dir / "ctl.sock")],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


async def start_run(stack, daemon, number, out):
    log = out / f"{daemon.name}.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fabric_train.run", "--job", "gpt", "--nodes", str(HOSTS),
            "--nproc-per-node", str(RANKS // HOSTS), "--standby", "0", "--address",
            f"127.0.0.{number}", "--daemon", str(daemon.run_dir), str(SCRIPT), str(out),
            stderr=file, stdout=file, start_new_session=True, cwd=out,
            env={**os.environ, "PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}"},
        )  # fmt: skip

    async def end():
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    stack.push_async_callback(end)
    return process


@pytest.fixture
async def site(tmp_path):
    """A job that trains: its fabric-compute, the fabricd of its hosts, and its directory."""
    async with AsyncExitStack() as stack:
        broker = Mosquitto(tmp_path / "mosquitto")
        broker.start()
        stack.callback(broker.stop)
        compute = Compute(tmp_path, broker, "c0")
        (compute.directory / "state").mkdir(mode=0o750)
        compute.call("promote", "migrate")
        compute.start()
        stack.callback(compute.stop)
        daemons = [Daemon(tmp_path / f"h{i}", broker, f"h{i}") for i in range(HOSTS)]
        out = tmp_path / "out"
        out.mkdir()
        for daemon in daemons:
            daemon.start()
            stack.callback(daemon.stop)
        for daemon in daemons:
            await until(daemon.answers, f"{daemon.name} answers")
        runs = [await start_run(stack, one, i, out) for i, one in enumerate(daemons, 2)]

        def trains():
            assert all(run.returncode is None for run in runs), logs(out)
            return jobs(compute).get("phase") == "running"

        await until(trains, "the job trains", START_S)
        yield compute, daemons, out
        assert all(run.returncode is None for run in runs), logs(out)


def logs(out):
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(out.glob("*.log")))


def jobs(compute):
    found = json.loads(compute.call("jobs", "--json"))
    return found[0] if found else {}


def ledger(compute, kind):
    entries = map(json.loads, compute.call("ledger", "export").splitlines())
    rows = [json.loads(entry["line"]) for entry in entries]
    return [row["fields"] for row in rows if row["kind"] == kind]


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
        assert sentence in fabricctl(daemon, "timeline", "--kind", "slow_rank")
        [job] = json.loads(fabricctl(daemon, "jobs", "--json"))["jobs"]
        assert job["slow_ranks"][0].startswith(sentence)
    assert time.monotonic() - began <= NAMED_S + 20

    (out / "slow").unlink()
    await until(lambda: not slow_metric(compute), "cleared", 2 * NAMED_S)
    assert [row["state"] for row in ledger(compute, "slow_rank")] == ["named", "cleared"]
    assert ledger(compute, "fence") == []
    assert ledger(compute, "recovery") == []
    assert jobs(compute)["generation"] == 1
