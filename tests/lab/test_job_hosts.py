"""A job of several fabric-run: a rank that crashes, and a host that dies, change nothing.

Real agents, ranks and connections on loopback; fabricd and fabric-compute are played by
``job_hosts``.
"""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from job_hosts import SCRIPT, Daemons, Run
from test_takeover import RANKS, STEPS, environment, struck, train, weights

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


async def start(stack, daemons, args, *faults, standby=(), steps=STEPS, **environment):
    runs = {}
    for number, host in enumerate(daemons.hosts, 2):
        mine = ["--standby", "1" if host in standby else "0", *args, str(SCRIPT), str(steps)]
        runs[host] = await Run.start(daemons, host, number, mine, *faults, **environment)
        stack.push_async_callback(runs[host].end)
    return runs


async def until(condition, runs):
    try:
        async with asyncio.timeout(400):
            while not condition():  # noqa: ASYNC110 - of files and processes, too
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(logs(runs)) from None


async def ended(runs):
    await until(lambda: all(run.process.returncode is not None for run in runs.values()), runs)
    return {host: run.process.returncode for host, run in runs.items()}


def logs(runs):
    return "\n".join(f"--- {host}\n{run.log.read_text()}" for host, run in runs.items())


def step(daemons, host):
    return max((one.step for one in daemons.documents[host].processes), default=0)


def is_running(daemons, hosts, number):
    return all(daemons.documents[host].running == number for host in hosts)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed") / "job"
    done = train(directory, spares=0)
    assert done.returncode == 0, done.stderr
    return weights(directory)


@pytest.mark.nightly
async def test_a_crashed_rank_and_a_dead_host_change_nothing(undisturbed, tmp_path):
    faults = ("1:9:forward", "2:19:host")
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abcde"))
        args = ["--nodes", str(RANKS), "--spares", "1"]
        runs = await start(stack, daemons, args, *faults, standby="b")
        codes = await ended(runs)
    assert codes == {"a": 0, "b": 0, "c": -9, "d": 0, "e": 0}, logs(runs)
    out = tmp_path / "run" / "out"
    assert struck(out) == {fault.replace(":", "-") for fault in faults}
    assert weights(out) == undisturbed, logs(runs)
    assert daemons.core.generation.hosts == ["a", "b", "e", "d"]
    found = json.loads((tmp_path / "run" / "a.json").read_text())
    assert [(row["generation"], row["ranks"], row["step"]) for row in found] == [
        (2, [1], 9), (3, [2], 19),
    ]  # fmt: skip
    assert all(row["lost_at"] <= row["recovered_at"] <= row["committed_at"] for row in found)


@pytest.mark.nightly
async def test_a_host_that_freezes_is_fenced_and_changes_nothing_when_it_wakes(
    undisturbed, tmp_path
):
    """Two ranks on each of two hosts, a spare host; fabricd of one host restarts meanwhile."""
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        args = ["--nodes", "2", "--spares", "1", "--nproc-per-node", "2"]
        runs = await start(stack, daemons, args, PAUSE_S="0.1")
        await until(lambda: "b" in daemons.documents and step(daemons, "b") > 5, runs)
        await daemons.restart("a")
        runs["b"].send(signal.SIGSTOP)
        await until(lambda: "b" in daemons.documents["e"].misses, runs)
        daemons.freeze("b")
        await until(lambda: daemons.documents["a"].running == 2, runs)
        assert "b" not in [*daemons.documents["a"].misses, *daemons.documents["a"].hears]
        runs["b"].send(signal.SIGCONT)
        codes = await ended(runs)
    assert codes == {"a": 0, "b": 1, "e": 0}, logs(runs)
    assert "fenced" in runs["b"].log.read_text()
    assert "fabricd is back" in runs["a"].log.read_text()
    assert weights(tmp_path / "run" / "out") == undisturbed, logs(runs)
    assert daemons.core.generation.hosts == ["a", "a", "e", "e"]


@pytest.mark.nightly
async def test_processes_that_change_ranks_and_a_drained_host_change_nothing(undisturbed, tmp_path):
    """Those that lose a rank live: what they hold is another rank's, and they end with the job."""
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        args = ["--nodes", "2", "--spares", "1", "--nproc-per-node", "2"]
        runs = await start(stack, daemons, args, PAUSE_S="0.1")
        await until(lambda: "a" in daemons.documents and step(daemons, "a") > 5, runs)
        for number, (one, other) in enumerate([(0, 1), (1, 3)], 2):
            previous = daemons.documents["a"].accepted
            slots, hosts = list(previous.slots), list(previous.hosts)
            slots[one], slots[other] = slots[other], slots[one]
            hosts[one], hosts[other] = hosts[other], hosts[one]
            news = replace(previous, number=number, base=number - 1, slots=slots, hosts=hosts)
            daemons.propose(replace(news, formed=True, lost=[one, other]))
            await until(lambda number=number: is_running(daemons, "abe", number), runs)
        daemons.drained["b"] = ""
        codes = await ended(runs)
    assert codes == {"a": 0, "b": 0, "e": 0}, logs(runs)
    assert daemons.core.generation.hosts == ["a", "e", "e", "a"]
    assert weights(tmp_path / "run" / "out") == undisturbed, logs(runs)


@pytest.mark.nightly
async def test_ranks_that_move_by_plan_run_no_step_again(undisturbed, tmp_path):
    """Both ranks of a drained host move to the spare one, while all go on.

    What a loop does after its attempt, here its scheduler's step, is of the step that has ended.
    """
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        args = ["--nodes", "2", "--spares", "1", "--nproc-per-node", "2"]
        runs = await start(stack, daemons, args, PAUSE_S="0.05", TAIL="1")
        await until(lambda: "b" in daemons.documents and step(daemons, "b") > 3, runs)
        daemons.drained["b"] = ""
        codes = await ended(runs)
    assert codes == {"a": 0, "b": 0, "e": 0}, logs(runs)
    assert daemons.core.generation.hosts == ["a", "a", "e", "e"]
    out = tmp_path / "run" / "out"
    assert weights(out) == undisturbed, logs(runs)
    tried = [line for path in out.glob("attempts.*") for line in path.read_text().split()]
    every = [f"{rank}:{number}" for rank in range(RANKS) for number in range(STEPS)]
    assert sorted(tried) == sorted(every), logs(runs)
    assert runs["b"].log.read_text().count(" leave: ") == 2


@pytest.mark.nightly
async def test_a_source_that_dies_when_the_next_step_has_begun_changes_nothing(
    undisturbed, tmp_path
):
    """After a planned move: the new process still lacks a part of the optimizer's state."""
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        args = ["--nodes", "2", "--spares", "1", "--nproc-per-node", "2"]
        runs = await start(stack, daemons, args, "0:-1:later", standby="a", PAUSE_S="0.05")
        await until(lambda: "b" in daemons.documents and step(daemons, "b") > 3, runs)
        daemons.drained["b"] = ""
        codes = await ended(runs)
    out = tmp_path / "run" / "out"
    assert codes == {"a": 0, "b": 0, "e": 0}, logs(runs)
    assert struck(out) == {"0--1-later"}, logs(runs)
    assert weights(out) == undisturbed, logs(runs)


@pytest.mark.nightly
async def test_a_rank_that_ends_before_the_job_has_state_lets_it_start_again(undisturbed, tmp_path):
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        args = ["--nodes", "2", "--spares", "1", "--nproc-per-node", "2"]
        runs = await start(stack, daemons, args, SETUP_FAULT="1")
        codes = await ended(runs)
    assert codes == {"a": 0, "b": 0, "e": 0}, logs(runs)
    assert struck(tmp_path / "run" / "out") == {"setup"}
    assert daemons.core.generation.number == 2
    assert weights(tmp_path / "run" / "out") == undisturbed, logs(runs)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--daemon", "nowhere", str(SCRIPT)], "no fabricd at nowhere/jobs.sock"),
        (["--daemon", "nowhere", str(SCRIPT)], "needs none: --standalone"),
        (["--address", "nonsense", str(SCRIPT)], "nonsense"),
        (["--interface", "nothere", str(SCRIPT)], "interface nothere: No such device"),
        (["--job", "a b", str(SCRIPT)], "--job 'a b'"),
        (["--nproc-per-node", "0", str(SCRIPT)], "at least one host and one rank"),
    ],
)
def test_what_cannot_work_is_said_at_once(args, text):
    run = [sys.executable, "-m", "fabric_train.run", "--nodes", "2", *args]
    done = subprocess.run(run, env=environment(), check=False, capture_output=True, text=True)
    assert done.returncode == (1 if "--daemon" in args else 2)
    assert text in done.stderr
