"""Checkpoints of a job that loses its writer: real agents, ranks and connections on loopback."""

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from job_hosts import Daemons
from test_job_hosts import ended, logs, start, until
from test_takeover import environment, records, train

from fabric_train import newest_checkpoint
from fabric_train.rules.protection import Protection
from fabric_train.state.checkpoint import Token

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

LOOP = str(Path(__file__).with_name("restart_loop.py"))
ARGS = ["--nodes", "2", "--spares", "1"]


@pytest.mark.nightly
async def test_a_host_that_freezes_while_it_writes_a_checkpoint_changes_nothing_when_it_wakes(
    tmp_path,
):
    """First its rank wakes, without anybody to tell it that it was replaced; then its agent."""
    import torch

    checkpoints, out = tmp_path / "checkpoints", tmp_path / "run" / "out"
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        more = {"CHECKPOINTS": str(checkpoints)}
        report = tmp_path / "protection.json"
        args = [*ARGS, "--protection", str(report)]
        runs = await start(stack, daemons, args, "0:9:writing", steps=20, **more)
        await until(lambda: (out / "pid.go on").exists(), runs)
        first = newest_checkpoint(checkpoints)
        assert (first.step, first.token) == (5, Token(1, 1))
        protection = Protection.decode(report.read_bytes())
        assert protection.ranks == {"a": [0], "b": [1]}
        assert protection.buddies == {"a": ["b"], "b": ["a"]}
        assert protection.replicated.keys() == {"model", "optimizer", "scheduler", "scaler"}
        assert (protection.unprotected, protection.warnings) == ([], [])
        runs["a"].send(signal.SIGSTOP)
        await until(lambda: "a" in daemons.documents["e"].misses, runs)
        daemons.freeze("a")
        await until(lambda: newest_checkpoint(checkpoints).token == Token(1, 2), runs)
        (out / "go on").touch()
        os.kill(int((out / "pid.go on").read_text()), signal.SIGCONT)
        await until((out / "refused").exists, runs)
        runs["a"].send(signal.SIGCONT)
        codes = await ended(runs)
    assert codes == {"a": 1, "b": 0, "e": 0}, logs(runs)
    assert "generation 2 of run 1 of job job" in (out / "refused").read_text()
    newest = newest_checkpoint(checkpoints)
    assert (newest.step, newest.token) == (20, Token(1, 2))
    assert sorted(path.name for path in checkpoints.glob("step-*")) == [
        f"step-{step:012d}-run-0001" for step in (5, 15, 20)
    ]
    assert (newest.path / "digest").read_text() == (out / "weights.0").read_text()
    assert "0.weight" in torch.load(newest.path / "model", weights_only=True)
    assert not list((checkpoints / ".fabric").glob("staging-*"))


@pytest.mark.nightly
def test_a_job_that_starts_again_goes_on_from_its_newest_checkpoint(tmp_path):
    more = {"CHECKPOINTS": str(tmp_path / "checkpoints")}
    assert train(tmp_path / "first", steps=12, more=more).returncode == 0
    first = newest_checkpoint(tmp_path / "checkpoints")
    assert (first.step, first.token) == (10, Token(1, 1))
    done = train(tmp_path / "second", "1:13:backward", steps=17, more=more)
    assert done.returncode == 0, done.stderr
    (record,) = records(tmp_path / "second")
    assert (record["ranks"], record["step"]) == ([1], 13)
    second = newest_checkpoint(tmp_path / "checkpoints")
    assert (second.step, second.token) == (15, Token(2, 2))
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert [name[-9:] for name in names] == ["-run-0001", "-run-0001", "-run-0002"]


def restart(directory, steps, checkpoints):
    directory.mkdir()
    args = ["--standalone", "--nproc-per-node", "2", "--spares", "0"]
    return subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args, LOOP, str(steps), str(directory)],
        env=environment(CHECKPOINTS=str(checkpoints)), cwd=directory, check=False,
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip


def test_the_loop_of_the_page_ends_with_the_same_bits_after_a_restart(tmp_path):
    """Ended after 13 steps, it goes on from its checkpoint after 10, in the second epoch."""
    ended = {}
    for name, parts in {"undisturbed": [20], "again": [13, 20]}.items():
        for steps in parts:
            done = restart(tmp_path / f"{name}-{steps}", steps, tmp_path / f"checkpoints-{name}")
            assert done.returncode == 0, done.stderr
        assert newest_checkpoint(tmp_path / f"checkpoints-{name}").step == 20
        ended[name] = [(tmp_path / f"{name}-20" / f"state.{rank}").read_text() for rank in (0, 1)]
    assert ended["again"] == ended["undisturbed"]


@pytest.mark.nightly
def test_a_checkpoint_on_a_full_file_system_says_so_with_sizes_and_older_ones_stay(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(checkpoints)]
    subprocess.run(mount, check=True)
    try:
        done = restart(tmp_path / "job", 20, checkpoints)
        kept = newest_checkpoint(checkpoints)
    finally:
        subprocess.run(["umount", str(checkpoints)], check=True)
    assert done.returncode == 0, done.stderr  # the writer ends, and its rank is taken over
    assert done.stderr.count("CheckpointFullError: [Errno 28] no room for a checkpoint: ") == 3
    assert " KiB of it were written, " in done.stderr
    assert " of 48.0 KiB are free" in done.stderr
    assert kept.step == 5


@pytest.mark.nightly
async def test_a_rank_whose_host_is_cut_off_from_the_majority_publishes_nothing(tmp_path):
    """Nobody has replaced it, and nobody may: two of three agents stand still."""
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "run" / "out"
    async with AsyncExitStack() as stack:
        daemons = await stack.enter_async_context(Daemons(tmp_path / "run", "abe"))
        more = {"CHECKPOINTS": str(checkpoints)}
        runs = await start(stack, daemons, ARGS, "0:9:writing", steps=20, **more)
        await until(lambda: (out / "pid.go on").exists(), runs)
        runs["b"].send(signal.SIGSTOP)
        runs["e"].send(signal.SIGSTOP)
        (out / "go on").touch()
        await until((out / "refused").exists, runs)
    assert (
        "1 of the 3 agents of generation 1 answer, and 2 are needed"
        in (out / "refused").read_text()
    )
    assert newest_checkpoint(checkpoints).step == 5
    assert not list((checkpoints / ".fabric").glob("staging-*"))
