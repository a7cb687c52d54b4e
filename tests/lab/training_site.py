"""A job of two hosts on loopback, with fabricd, mosquitto and fabric-compute, for what it tells."""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager

from broker_lab import Daemon, until
from compute_world import REPO, Compute, Mosquitto

HOSTS, RANKS = 2, 4
START_S = 120.0


async def start_run(stack, daemon, number, out, script, standby, more):
    log = out / f"{daemon.name}.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fabric_train.run", "--job", "gpt", "--nodes", str(HOSTS),
            "--nproc-per-node", str(RANKS // HOSTS), "--standby", str(standby), "--address",
            f"127.0.0.{number}", "--daemon", str(daemon.run_dir), str(script), str(out),
            stderr=file, stdout=file, start_new_session=True, cwd=out,
            env={**os.environ, **more, "PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}"},
        )  # fmt: skip

    async def end():
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    stack.push_async_callback(end)
    return process


@asynccontextmanager
async def training_site(tmp_path, script, *, standby=0, more=()):
    """A job that trains: its fabric-compute, the fabricd of its hosts, its directory and its runs.

    ``standby``: warm processes of each host. ``more``: of the environment of its fabric-runs.
    """
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
        runs = [
            await start_run(stack, one, i, out, script, standby, dict(more))
            for i, one in enumerate(daemons, 2)
        ]

        def trains():
            assert all(run.returncode is None for run in runs), logs(out)
            return jobs(compute).get("phase") == "running"

        await until(trains, "the job trains", START_S)
        yield compute, daemons, out, runs


def logs(out):
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(out.glob("*.log")))


def jobs(compute):
    found = json.loads(compute.call("jobs", "--json"))
    return found[0] if found else {}


def ledger(compute, kind):
    entries = map(json.loads, compute.call("ledger", "export").splitlines())
    rows = [json.loads(entry["line"]) for entry in entries]
    return [row["fields"] for row in rows if row["kind"] == kind]
