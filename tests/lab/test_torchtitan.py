"""TorchTitan's debug models, trained by its own step, and ranks that die in it.

What has to come out is what the same job gives undisturbed: SHA-256 of each rank's parameters,
buffers and optimizer state, learning rates, random generator and the tokens that it has read.
"""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from test_takeover import struck

from lab.gpu.machine import look, plugin
from lab.gpu.plan import missing
from lab.node import REPO
from lab.supply.own_venv import own_python

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
STEPS = 9
MOMENTS = ("1:1:forward", "2:3:backward", "3:5:optimizer", "0:7:gate")
"""Two steps apart: a buddy that is lost in the step after its ward takes the copy of it along."""


@pytest.fixture(scope="module")
def python():
    return own_python("torchtitan")


def write_texts(directory):
    """A tokenizer of 500 words, and documents of them: TorchTitan looks for none on the network."""
    words = ["<bos>", "<eos>", "<unk>", *(f"w{number}" for number in range(500))]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": at, "content": words[at], "special": True} | plain for at in range(3)]
    places = {word: at for at, word in enumerate(words)}
    tokenizer = {
        "version": "1.0", "added_tokens": special, "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": places, "unk_token": "<unk>"},
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    }  # fmt: skip
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    ends = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (directory / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(ends))
    draw = random.Random(1)
    (directory / "texts").mkdir()
    with (directory / "texts" / "train.jsonl").open("w") as lines:
        for _ in range(60):
            text = " ".join(draw.choices(words[3:], k=draw.randrange(10, 150)))
            lines.write(json.dumps({"text": text}) + "\n")


def train(python, directory, kind, *faults, ranks=4, spares=1, options=(), **more):
    directory.mkdir()
    write_texts(directory)
    argv = [python, "-m", "fabric_train.run", "--standalone", "--nproc-per-node", str(ranks)]
    argv += ["--spares", str(spares), *options, HERE / "torchtitan_loop.py", str(STEPS), directory]
    own = {
        "KIND": kind, "FAULTS": ",".join(faults), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(directory / "cache"),
        "PYTHONPATH": f"{REPO}:{os.environ.get('PYTHONPATH', '')}",
    }  # fmt: skip
    done = subprocess.run(
        argv, env=os.environ | own | more, cwd=directory, check=False, capture_output=True,
        text=True, timeout=1700,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [(directory / f"weights.{rank}").read_text() for rank in range(ranks)], done.stderr


@pytest.mark.parametrize(("kind", "shards"), [("fsdp", 4), ("hsdp", 2), ("moe", 4)])
def test_ranks_of_torchtitan_killed_at_any_moment_change_nothing(python, tmp_path, kind, shards):
    calm, _ = train(python, tmp_path / "calm", kind, spares=0)
    found, said = train(python, tmp_path / "job", kind, *MOMENTS)
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in MOMENTS}
    assert found == calm
    assert len({one.split()[0] for one in found}) == shards
    assert ("1 buddy keeps a copy" in said) == (kind != "hsdp")


@pytest.mark.gpu
def test_so_do_they_on_a_gpu_without_a_stub(python, tmp_path):
    """Two ranks on one GPU, over NCCL and our network plugin."""
    reason = missing(look(str(python)))
    if reason:
        pytest.skip(reason)
    own = {
        "NCCL_NET": "FABRIC", "NCCL_NET_PLUGIN": str(plugin()), "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
        "FABRIC_RUN_DIR": str(tmp_path), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }  # fmt: skip
    how = {"ranks": 2, "options": ("--backend", "nccl"), **own}
    calm, _ = train(python, tmp_path / "calm", "fsdp", spares=0, **how)
    faults = ("1:1:forward", "0:3:backward", "1:5:optimizer")
    found, _ = train(python, tmp_path / "job", "fsdp", *faults, **how)
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert found == calm
