"""Ctrl-C in the terminal of a fabric-run: the signal goes to it and to all its ranks at once."""

import os
import signal
import subprocess

import pytest
from test_takeover import RANKS, alive, command, environment, wait_for_children

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


def interrupt(job, ready, **more):
    """Standard error of a fabric-run that is interrupted when ``ready`` of its pids are there."""
    job.mkdir()
    with subprocess.Popen(
        command(job, steps=100_000), env=environment(PAUSE_S="0.02", **more), cwd=job,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        children = ready(job, process)
        os.killpg(process.pid, signal.SIGINT)
        error = process.communicate(timeout=120)[1]
    assert process.returncode == 1  # as torchrun
    assert not any(alive(child) for child in children)
    return error


def assert_clean(error):
    assert error.splitlines()[-1] == "fabric-run: job job failed: ended by SIGINT"
    for text in ("Traceback", "KeyboardInterrupt", "taken over", "lost", "killed"):
        assert text not in error, error


def test_a_job_that_trains_is_ended_without_a_takeover_and_without_a_traceback(tmp_path):
    assert_clean(interrupt(tmp_path / "job", lambda job, _: wait_for_children(job, RANKS + 1)))


@pytest.mark.nightly
def test_so_is_one_whose_ranks_still_import(tmp_path):
    def starting(_job, process):
        path = f"/proc/{process.pid}/task/{process.pid}/children"
        while len(children := open(path).read().split()) < RANKS + 1:  # noqa: PTH123, SIM115
            assert process.poll() is None
        return list(map(int, children))

    assert_clean(interrupt(tmp_path / "job", starting))
