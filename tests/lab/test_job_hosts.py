"""A job of several fabric-run: a rank that crashes, and a host that dies, change nothing.

Real agents, ranks and connections on loopback; fabricd and fabric-compute are played by
``job_hosts``.
"""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from job_hosts import SCRIPT, Daemons, Run
from test_takeover import RANKS, STEPS, struck, train, weights

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


async def start(stack, daemons, args, *faults, standby=()):
    runs = {}
    for number, host in enumerate(daemons.hosts, 2):
        mine = ["--standby", "1" if host in standby else "0", *args, str(SCRIPT), str(STEPS)]
        runs[host] = await Run.start(daemons, host, number, mine, *faults)
        stack.push_async_callback(runs[host].end)
    return runs


async def wait(runs, daemons):
    try:
        async with asyncio.timeout(400):
            return {host: await run.process.wait() for host, run in runs.items()}
    except TimeoutError:
        raise AssertionError(logs(runs)) from None


def logs(runs):
    return "\n".join(f"--- {host}\n{run.log.read_text()}" for host, run in runs.items())


async def test_a_crashed_rank_and_a_dead_host_change_nothing(tmp_path):
    undisturbed = tmp_path / "undisturbed"
    done = await asyncio.to_thread(train, undisturbed, spares=0)
    assert done.returncode == 0, done.stderr
    faults = ("1:9:forward", "2:19:host")
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abcde"))
        args = ["--nodes", str(RANKS), "--spares", "1"]
        runs = await start(stack, daemons, args, *faults, standby="b")
        codes = await wait(runs, daemons)
    assert codes == {"a": 0, "b": 0, "c": -9, "d": 0, "e": 0}, logs(runs)
    out = tmp_path / "run" / "out"
    assert struck(out) == {fault.replace(":", "-") for fault in faults}
    assert weights(out) == weights(undisturbed), logs(runs)
    assert daemons.core.generation.hosts == ["a", "b", "e", "d"]
    found = json.loads((tmp_path / "run" / "a.json").read_text())
    assert [(row["generation"], row["ranks"], row["step"]) for row in found] == [
        (2, [1], 9), (3, [2], 19),
    ]  # fmt: skip
    assert all(row["lost_at"] <= row["recovered_at"] <= row["committed_at"] for row in found)
