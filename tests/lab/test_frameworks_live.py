"""Scripts of transformers and Lightning, of which no line is changed, and ranks that die in them.

What has to come out is what torchrun gives undisturbed: SHA-256 of weights and optimizer state, the
schedule, and all that was logged.
"""

import os
import subprocess
from pathlib import Path

import pytest
from test_takeover import struck

from lab.node import REPO
from lab.supply.own_venv import own_python

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
RANKS = 2
STEPS = {"trainer_loop": 16, "lightning_loop": 12}
SHORT = ("1:3:forward", "0:5:backward", "1:6:optimizer")
"""Of ``trainer_loop``, with eight steps."""
MOMENTS = {
    "trainer_loop": (
        ("1:2:forward", "0:5:backward", "1:8:gate", "0:11:optimizer"),
        ("0:0:gate", "0:6:log", "1:7:epoch", "1:10:evaluate", "0:14:save", "1:16:end"),
    ),
    "lightning_loop": (
        ("1:1:forward", "0:3:backward", "1:6:gate", "0:9:end"),
        ("0:0:gate", "0:5:epoch", "1:10:validation", "1:12:last"),
    ),
}


@pytest.fixture(scope="module")
def python():
    return own_python("frameworks")


def run(argv, directory, *faults):
    directory.mkdir()
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": path, "FAULTS": ",".join(faults)}
    return subprocess.run(
        argv, env=environment | {"OMP_NUM_THREADS": "1"}, cwd=directory, check=False,
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip


def by_torchrun(python, directory, script, steps):
    argv = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    done = run([*argv, HERE / f"{script}.py", str(steps), directory], directory)
    assert done.returncode == 0, done.stderr
    return weights(directory)


def protected(python, directory, script, steps, *faults, spares=2, how=("--transparent",)):
    argv = [python, "-m", "fabric_train.run", "--standalone", *how, "--nproc-per-node"]
    argv += [str(RANKS), "--spares", str(spares), HERE / f"{script}.py", str(steps), directory]
    return run(argv, directory, *faults)


def weights(directory):
    return [(directory / f"weights.{rank}").read_text() for rank in range(RANKS)]


def assert_none_ran_again(directory):
    """Each process has begun each batch of each step once: a loop runs on, whoever dies."""
    for path in directory.glob("attempts.*"):
        begun = path.read_text().split()
        assert begun == sorted(begun, key=lambda one: int(one.partition(":")[2])), path
        assert max(begun.count(one) for one in set(begun)) <= 2, path  # of Lightning, two batches


def test_ranks_of_a_trainer_killed_in_any_phase_change_nothing(python, tmp_path):
    calm = by_torchrun(python, tmp_path / "calm", "trainer_loop", 8)
    done = protected(python, tmp_path / "job", "trainer_loop", 8, *SHORT, spares=3)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in SHORT}
    assert weights(tmp_path / "job") == calm
    assert_none_ran_again(tmp_path / "job")


@pytest.mark.nightly
@pytest.mark.parametrize("script", MOMENTS)
def test_ranks_killed_at_any_moment_of_a_framework_change_nothing(python, tmp_path, script):
    calm = by_torchrun(python, tmp_path / "calm", script, STEPS[script])
    for place, faults in enumerate([(), *MOMENTS[script]]):
        directory = tmp_path / f"job{place}"
        done = protected(python, directory, script, STEPS[script], *faults)
        assert done.returncode == 0, done.stderr
        assert struck(directory) == {fault.replace(":", "-") for fault in faults}
        assert weights(directory) == calm
        assert_none_ran_again(directory)


@pytest.mark.nightly
def test_ranks_killed_in_a_loop_with_accelerate_change_nothing(python, tmp_path):
    faults = ("1:3:forward", "0:7:backward", "1:11:gate", "0:15:optimizer")
    script = "accelerate_loop"
    calm = protected(python, tmp_path / "calm", script, 20, spares=0, how=())
    assert calm.returncode == 0, calm.stderr
    done = protected(python, tmp_path / "job", script, 20, *faults, how=())
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == weights(tmp_path / "calm")
    assert_none_ran_again(tmp_path / "job")


REFUSED = {
    "has a loop of its own": """
import torch
model = torch.nn.Linear(2, 2)
torch.optim.SGD(model.parameters(), lr=0.1).step()
""",
    "has ended without a training loop": "print('nothing to train')",
    "runs by --transparent and joins its job itself": """
import importlib
importlib.import_module("fabric_" + "train").join()
""",
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_taken_over_is_refused_in_one_sentence(python, tmp_path, sentence):
    script = tmp_path / "train.py"
    script.write_text(REFUSED[sentence])
    argv = [python, "-m", "fabric_train.run", "--standalone", "--transparent", script]
    done = run([*argv], tmp_path / "job")
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("fabric-run: job ")]
    assert len(said) == 1
    assert sentence in said[0]


def test_a_trainer_that_cannot_be_exact_is_refused_by_name(python, tmp_path):
    """Its data have no length: a replacement could not find its place."""
    script = tmp_path / "train.py"
    source = (HERE / "trainer_loop.py").read_text()
    assert "def __len__(self):" in source
    script.write_text(source.replace(
        "class Texts(torch.utils.data.Dataset):", "class Texts(torch.utils.data.IterableDataset):"
    ).replace("    def __len__(self):\n        return self.count\n", "").replace(
        "def __getitem__(self, index):", "def __iter__(self):\n        index = 0",
    ).replace("return {", "yield {"))  # fmt: skip
    argv = [python, "-m", "fabric_train.run", "--standalone", "--transparent"]
    argv += ["--nproc-per-node", "2", script, "4", tmp_path]
    done = run(argv, tmp_path / "job")
    assert done.returncode == 1
    assert "this Trainer cannot be taken over: its data set has no length" in done.stderr
