"""Process groups beside the default one: what they sum is as undisturbed when ranks are lost."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_takeover import RANKS, environment, struck, weights

from lab.cluster import Cluster, wait_until
from lab.faults.catalog import NodeKill
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("grouped_loop.py")
STEPS = 24
LONG = 240.0
MOMENTS = ("3:4:forward", "1:9:groups", "2:14:backward", "0:19:optimizer")


def train(directory, *faults, spares=1, script=SCRIPT, steps=STEPS, options=()):
    directory.mkdir()
    args = ["--standalone", "--nproc-per-node", str(RANKS), "--spares", str(spares), *options]
    args += [str(script)]
    return subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args, str(steps), str(directory)],
        env=environment(*faults), cwd=directory, check=False, capture_output=True, text=True,
        timeout=500,
    )  # fmt: skip


def test_ranks_killed_at_any_moment_change_nothing_of_what_groups_sum(tmp_path):
    calm = train(tmp_path / "calm", spares=0)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", *MOMENTS)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in MOMENTS}
    assert weights(tmp_path / "job") == weights(tmp_path / "calm")
    assert len(set(weights(tmp_path / "job"))) == 1


SHARDED = SCRIPT.with_name("hsdp_loop.py")
SHARDED_MOMENTS = (
    "3:3:forward", "1:6:backward", "2:9:clip", "0:12:gate", "3:15:optimizer", "0:18:optimizer",
)  # fmt: skip


S1 = ("0:5:unheard", "2:5:voted")
"""Rank 0 holds gradients of a step that 1 and 3 have applied; its replica, 2, dies behind it."""


def test_a_source_that_has_yet_to_apply_its_step_sends_what_it_has_then(tmp_path):
    calm = train(tmp_path / "calm", spares=0, script=SHARDED, steps=8)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", *S1, script=SHARDED, steps=8)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in S1}
    assert " apply: {" in done.stderr
    assert weights(tmp_path / "job") == weights(tmp_path / "calm")


def test_ranks_with_shards_are_taken_over_from_the_replicas_of_their_shards(tmp_path):
    calm = train(tmp_path / "calm", spares=0, script=SHARDED)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", *SHARDED_MOMENTS, script=SHARDED)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in SHARDED_MOMENTS}
    found = weights(tmp_path / "job")
    assert found == weights(tmp_path / "calm")
    assert (found[0], found[1]) == (found[2], found[3])
    assert found[0] != found[1]  # two shards


GATHERED = SCRIPT.with_name("gathered_loop.py")
GATHERED_MOMENTS = (
    "3:3:forward", "1:6:gate", "2:9:optimizer", "0:12:gather", "3:15:gather", "1:18:forward",
)  # fmt: skip


@pytest.mark.nightly
def test_ranks_with_a_shard_of_the_optimizer_alone_gather_parameters_anew(tmp_path):
    calm = train(tmp_path / "calm", spares=0, script=GATHERED)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", *GATHERED_MOMENTS, script=GATHERED)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in GATHERED_MOMENTS}
    found = weights(tmp_path / "job")
    assert found == weights(tmp_path / "calm")
    assert (found[0], found[1]) == (found[2], found[3])
    assert found[0] != found[1]  # two halves


@pytest.mark.nightly
def test_a_spare_that_was_built_for_a_rank_takes_it_and_others_go_to_late_ones(tmp_path):
    calm = train(tmp_path / "calm", spares=0, script=SHARDED)
    assert calm.returncode == 0, calm.stderr
    faults = ("2:6:backward", "3:12:forward", "2:18:gate")
    early = ("--early-spares", "2")
    done = train(tmp_path / "job", *faults, script=SHARDED, options=early)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == weights(tmp_path / "calm")
    copies = re.findall(r"(p\d+) copy: ", done.stderr)
    assert copies == ["p5", "p4", "p6"]  # built for 2, late, built for 2


@pytest.mark.nightly
def test_a_host_with_shards_is_taken_over_over_several_hosts(tmp_path):
    calm = train(tmp_path / "calm", spares=0, script=SHARDED)
    assert calm.returncode == 0, calm.stderr
    topology = Topology(
        name="shards", hosts=RANKS + 1, rails=2, rate_bps=200_000_000, management=True
    )
    with Cluster(topology=topology) as cluster:
        management = Management(cluster)
        management.start_broker()
        management.start_compute()
        cluster.start_daemons(mode="migrate", broker=management.broker_table)
        out = cluster.dir.root / "out"
        out.mkdir()
        job = TrainingJob(
            cluster, SHARDED, [str(STEPS), str(out)], nodes=RANKS, spares=1,
            env={"FAULTS": "2:9:host"},
        )  # fmt: skip
        wait_until(lambda: (out / "struck.2-9-host").exists() or not job.running, LONG, "step 9")
        with cluster.inject(NodeKill("h2")):
            statuses = job.wait(LONG, but=("h2",))
        what = "\n".join(job.log(node).read_text() for node in job.hosts)
        assert set(statuses.values()) == {0}, what
        assert weights(out) == weights(tmp_path / "calm"), what
