"""Scripts that read torchrun's names find them, also in the process that takes a rank over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import environment

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("named_loop.py")


def names(out, *args):
    options = ["--standalone", "--nproc-per-node", "2", "--spares", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *options, str(SCRIPT), str(out), *args],
        env=environment(RANK="7", GROUP_RANK="3"), cwd=out, check=False, capture_output=True,
        text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (out / "killed").exists()
    found = {}
    for path in [*out.glob("joined.*"), *out.glob("rank.*")]:
        found[path.name] = json.loads(path.read_text())
    return found


def of(rank, place):
    return {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip


def test_ranks_have_them_behind_join_and_a_spare_has_its_own_place(tmp_path):
    found = names(tmp_path)
    assert found["joined.p0"] == found["rank.0.p0"] == of(0, 0)
    assert found["joined.p1"] == of(1, 1)
    spare = found["joined.p2"]
    assert ("RANK" in spare, "GROUP_RANK" in spare, spare["LOCAL_RANK"]) == (False, False, "2")
    assert found["rank.1.p2"] == of(1, 2)


def test_a_spare_that_waits_for_its_rank_has_the_place_of_whom_it_replaces(tmp_path):
    found = names(tmp_path, "late")
    assert found["joined.p2"] == found["rank.1.p2"] == of(1, 1)
    assert found["rank.0.p0"] == of(0, 0)
