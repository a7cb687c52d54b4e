"""What people see of a job: the script's exit status, ranks' output with prefixes and in files."""

import subprocess

import pytest
from test_takeover import RANKS, command, environment

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

STEPS = 12


def run(directory, *options, script=None, **more):
    directory.mkdir()
    whole = command(directory, steps=STEPS)
    if script is not None:
        (directory / "script.py").write_text(script)
        whole = [*whole[: whole.index("--records")], str(directory / "script.py")]
    whole[3:3] = options
    return subprocess.run(
        whole, env=environment(**more), cwd=directory, check=False, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


LOOP = (
    "import fabric_train, os, signal, sys, torch\n"
    "job = fabric_train.join()\n"
    "net = torch.nn.Linear(2, 2)\n"
    "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    "job.protect(model=net, optimizer=optimizer)\n"
    "for step in job.steps(9):\n"
    "    with job.attempt():\n"
    "        if step == 3 and not job.rehearsing and job.rank == 1:\n"
    "            {}\n"
    "        optimizer.zero_grad()\n"
    "        net(torch.ones(2)).sum().backward()\n"
    "        optimizer.step()\n"
)


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("import sys; sys.exit(7)", 7, "exited with status 7 before the job had state, 3 times"),
        pytest.param(LOOP.format("sys.exit(41)"), 41, "5 recoveries without a step forward",
                     marks=pytest.mark.nightly),
        pytest.param(LOOP.format("os.kill(os.getpid(), signal.SIGKILL)"), 128 + 9,
                     "rank 1: killed by SIGKILL", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_script_that_ends_the_job_gives_its_exit_status(tmp_path, script, status, said):
    done = run(tmp_path / "job", script=script)
    assert done.returncode == status, done.stderr
    assert said in done.stderr.splitlines()[-1]


def test_ranks_have_a_prefix_and_files_and_a_takeover_changes_neither(tmp_path):
    logs = tmp_path / "logs"
    script = (
        "import os, signal, sys, pathlib\n"
        + LOOP.format(
            "if not pathlib.Path('killed').exists():"
            " pathlib.Path('killed').touch(); os.kill(os.getpid(), signal.SIGKILL)"
        ).replace(
            "        optimizer.zero_grad()\n",
            "        if not job.rehearsing: print('step', step, 'of', job.rank)\n"
            "        if not job.rehearsing: print('wrong', step, file=sys.stderr)\n"
            "        optimizer.zero_grad()\n",
        )
        + "print('x' * 100_000)\n"
    )
    options = ("--log-prefix", "--log-dir", str(logs), "--progress-every", "0.5", "--tee", "1")
    done = run(tmp_path / "job", *options, script=script)
    assert done.returncode == 0, done.stderr
    assert "[rank0]: step 0 of 0" in done.stdout.splitlines()
    assert "[rank1]: step 8 of 1" in done.stdout.splitlines()
    assert "wrong" not in done.stderr
    assert ", no takeover" in done.stderr
    (found,) = logs.iterdir()
    assert f"output of the ranks is in {found}" in done.stderr
    assert (found / "rank1").readlink().name == "p4"
    first = (found / "p1" / "stdout").read_text().splitlines()
    assert first == [f"step {step} of 1" for step in range(3)], (
        "a killed rank's last words are kept"
    )
    for rank in range(RANKS):
        printed = (found / f"rank{rank}" / "stdout").read_text()
        assert printed.splitlines()[-1] == "x" * 100_000
        assert f"step 8 of {rank}" in printed
    assert "wrong 8" in (found / "rank0" / "stderr").read_text()


def test_a_disk_that_is_full_ends_and_blocks_nothing(tmp_path):
    """The training goes on, its last words are on the console, and what is missing is said."""
    logs = tmp_path / "logs"
    logs.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(logs)], check=True, timeout=60
    )
    try:
        script = LOOP.format("pass") + "print('y' * 1_000_000); print('over', job.rank)\n"
        done = run(tmp_path / "job", "--log-dir", str(logs), script=script)
    finally:
        subprocess.run(["umount", str(logs)], check=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"over {rank}" in done.stdout for rank in range(RANKS))
    assert "No space left on device" in done.stderr
    assert "bytes of output are missing there" in done.stderr.splitlines()[-1]


def test_a_log_directory_without_anything_to_keep_there_is_refused(tmp_path):
    done = run(tmp_path / "job", "--tee", "1")
    assert done.returncode == 2
    assert "--tee: nothing would be kept without --log-dir DIR" in done.stderr
