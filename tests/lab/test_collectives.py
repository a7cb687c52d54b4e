"""Collectives in a healthy attempt give what they give over plain gloo: real ranks on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import environment

from lab.node import REPO

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("collective_calls.py")
PLUGIN = REPO / "build" / "release" / "nccl_plugin" / "libnccl-net-fabric.so"
RANKS, COUNT = 3, 26 * 4
ON_PLUGIN_NOT = {"BAND", "BOR", "BXOR"}


def results(directory, ranks=RANKS):
    texts = [(directory / f"results.{rank}").read_text() for rank in range(ranks)]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return over_gloo(tmp_path_factory.mktemp("plain"))


def over_gloo(out, *grouped, ranks=RANKS, count=COUNT):
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, "plain", str(count), out, *grouped], stderr=subprocess.PIPE,
            env={**environment(), "RANK": str(rank), "WORLD": str(ranks), "OMP_NUM_THREADS": "1",
                 "WORLD_SIZE": str(ranks)},
            text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    for process in processes:
        error = process.communicate(timeout=250)[1]
        assert process.returncode == 0, error
    return results(out, ranks)


def in_job(out, *grouped, ranks=RANKS, count=COUNT, **more):
    args = ["--standalone", "--nproc-per-node", str(ranks), "--spares", "1", str(SCRIPT), "job"]
    done = subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args, str(count), str(out), *grouped],
        env=environment(**more), cwd=out, check=False, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "generation 2" not in done.stderr
    return results(out, ranks)


@pytest.mark.nightly
def test_all_that_gloo_can_is_the_same_over_gloo_in_a_job(plain, tmp_path):
    found = in_job(tmp_path)
    assert found == plain
    errors = [line for lines in plain for line in lines if isinstance(line["found"], str)]
    assert errors == []


GROUPED_RANKS, GROUPED_COUNT = 4, 26 * 4 * 2
"""Each call over the world, rows, columns and uneven groups, with two draws."""


def test_groups_that_a_job_makes_give_what_those_of_gloo_give(tmp_path):
    """Of ``new_group`` and of a device mesh: values, sizes, types and errors, on every rank."""
    options = {"ranks": GROUPED_RANKS, "count": GROUPED_COUNT}
    (tmp_path / "plain").mkdir()
    (tmp_path / "job").mkdir()
    expected = over_gloo(tmp_path / "plain", "groups", **options)
    found = in_job(tmp_path / "job", "groups", **options)
    for rank, (mine, its) in enumerate(zip(found, expected, strict=True)):
        for number, (line, other) in enumerate(zip(mine, its, strict=True)):
            assert line == other, (rank, number, line["call"])
    errors = [line for lines in expected for line in lines if isinstance(line["found"], str)]
    assert errors == []


def test_all_that_gloo_can_is_the_same_over_the_plugin_or_refused_by_name(plain, tmp_path):
    more = {"NCCL_NET_PLUGIN": str(PLUGIN), "FABRIC_TRAIN_BACKEND": "plugin",
            "FABRIC_RUN_DIR": str(tmp_path)}  # fmt: skip
    found = in_job(tmp_path, **more)
    compared = 0
    for mine, its in zip(found, plain, strict=True):
        for line, expected in zip(mine, its, strict=True):
            if line["op"] in ON_PLUGIN_NOT or line["call"] == "receive_from_any":
                assert line["found"].startswith("TypeError: the plugin backend ")
                continue
            assert line == expected
            compared += 1
    assert compared > RANKS * COUNT * 0.8


@pytest.mark.nightly
def test_what_gloo_cannot_do_ends_the_job_at_once_and_the_last_line_says_why(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, fabric_train, torch.distributed as dist\n"
        "job = fabric_train.join()\n"
        "net = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "job.protect(model=net, optimizer=optimizer)\n"
        "for step in job.steps(9):\n"
        "    with job.attempt():\n"
        "        optimizer.zero_grad()\n"
        "        net(torch.ones(2)).sum().backward()\n"
        "        if step == 3:\n"
        "            dist.all_reduce(torch.ones(2, dtype=torch.int16))\n"
        "        optimizer.step()\n"
    )
    args = ["--standalone", "--nproc-per-node", "2", "--spares", "1", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args], env=dict(os.environ, **environment()),
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 1
    assert "taken over" not in done.stderr
    assert "Invalid scalar type" in done.stderr.splitlines()[-1], done.stderr
