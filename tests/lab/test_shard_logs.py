"""FSDP2 without replicas: shards of lost ranks are rebuilt from what their buddies keep."""

import signal
import subprocess
import sys

import pytest
from test_job_groups import LONG, SHARDED
from test_takeover import RANKS, environment, records, struck, weights

from lab.cluster import Cluster, wait_until
from lab.faults.catalog import NodeKill
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

DECLARED = SHARDED.with_name("declared_loop.py")
STEPS = 14
MOMENTS = ("3:3:forward", "1:5:backward", "2:7:gate", "0:9:optimizer", "1:11:clip")
NEIGHBOURS = ("1:6:backward", "2:6:backward")


def train(directory, *faults, spares=1, steps=STEPS, script=SHARDED, **more):
    directory.mkdir()
    args = ["--standalone", "--nproc-per-node", str(RANKS), "--spares", str(spares)]
    args += ["--records", str(directory / "records.json"), str(script)]
    return subprocess.run(
        [sys.executable, "-m", "fabric_train.run", *args, str(steps), str(directory)],
        env=environment(*faults, **{"MESH": str(RANKS), **more}), cwd=directory, check=False,
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip


def same_as_undisturbed(tmp_path, *faults, spares=1, steps=STEPS, **more):
    calm = train(tmp_path / "calm", spares=0, steps=steps, **more)
    assert calm.returncode == 0, calm.stderr
    done = train(tmp_path / "job", *faults, spares=spares, steps=steps, **more)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == weights(tmp_path / "calm"), done.stderr
    return done


def test_ranks_whose_shards_no_other_one_has_are_rebuilt_bit_by_bit(tmp_path):
    done = same_as_undisturbed(tmp_path, *MOMENTS)
    assert "1 buddy keeps a copy and the gradients since: " in done.stderr
    assert len(set(weights(tmp_path / "job"))) == RANKS


PLAIN_MOMENTS = ("1:4:forward", "2:7:gate", "3:9:optimizer", "0:11:forward")


@pytest.mark.nightly
@pytest.mark.parametrize(("mesh", "layers"), [("2x2", 2), ("4", RANKS)])
def test_plain_tensors_are_taken_over_as_the_loop_declares_them(tmp_path, mesh, layers):
    same_as_undisturbed(tmp_path, *PLAIN_MOMENTS, script=DECLARED, MESH=mesh)
    assert len(set(weights(tmp_path / "job"))) == layers


@pytest.mark.nightly
def test_who_declares_replicas_that_are_none_is_told_at_the_start(tmp_path):
    done = train(tmp_path / "job", spares=0, script=DECLARED, MESH="2x2", SEED="7")
    assert done.returncode == 1, done.stderr
    assert "ranks 1 and 3 hold the same shards, and their states differ" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["SGD", "NAdam", "Adagrad"])
def test_so_are_those_of_other_optimizers(tmp_path, optimizer):
    same_as_undisturbed(tmp_path, *MOMENTS, OPTIMIZER=optimizer)


@pytest.mark.nightly
def test_shards_of_split_layers_are_rebuilt_too(tmp_path):
    """Tensor parallel over one dimension, FSDP2 over the other."""
    same_as_undisturbed(tmp_path, *MOMENTS, MESH="2x2", PARALLEL="tensor")


@pytest.mark.nightly
def test_a_buddy_with_gradients_alone_makes_its_step_first(tmp_path):
    """S1: rank 3, which keeps the shards of 2, has not heard of the vote; 2 dies behind it."""
    done = same_as_undisturbed(tmp_path, "3:5:unheard", "2:5:voted", steps=8)
    assert " apply: {" in done.stderr


@pytest.mark.nightly
def test_two_neighbours_at_once_are_rebuilt_from_the_second_buddy(tmp_path):
    same_as_undisturbed(tmp_path, *NEIGHBOURS, spares=2, BUDDIES="2")


@pytest.mark.nightly
def test_two_neighbours_at_once_are_refused_with_one_buddy_and_named(tmp_path):
    done = train(tmp_path / "job", *NEIGHBOURS, spares=2)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr  # as the lost ranks ended
    assert "the state of rank 1 after step 6 has no live copy" in done.stderr
    assert not [*(tmp_path / "job").glob("weights.*")]


def run_again(directory):
    """Applied steps that each recovery has taken back, of each; and what ranks say of all.

    Of a recovery in which another rank was lost there is no figure: the next one has it.
    """
    said = [int(path.read_text()) for path in sorted(directory.glob("again.*"))]
    return [one["again"] for one in records(directory) if one["again"] is not None], said


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("optimizer", "moments", "again"),
    [
        ("Muon", MOMENTS, [0, 0, 0, 1, 0]),
        # In the midst of its step, which no rank has whole then.
        ("Lars", (*MOMENTS[:4], "1:11:inside2"), [0, 0, 0, 1, 0]),
    ],
)
def test_an_optimizer_of_whole_matrices_goes_back_one_step_at_most(
    tmp_path, optimizer, moments, again
):
    done = same_as_undisturbed(tmp_path, *moments, OPTIMIZER=optimizer)
    assert "1 buddy gets a whole copy with each step" in done.stderr
    assert done.stderr.count("at most one step is run again") >= 1
    taken, said = run_again(tmp_path / "job")
    assert taken == again
    assert len(said) == RANKS
    assert max(said) == sum(again)  # of a rank that has never been lost


@pytest.mark.nightly
def test_two_neighbours_behind_a_step_go_back_with_all_to_the_second_buddys_copies(tmp_path):
    lost = ("1:6:optimizer", "2:6:optimizer")
    same_as_undisturbed(tmp_path, *lost, spares=2, BUDDIES="2", OPTIMIZER="Lars")
    assert sum(run_again(tmp_path / "job")[0]) == 1


@pytest.mark.nightly
def test_a_vote_that_one_rank_has_not_heard_takes_all_back(tmp_path):
    """Rank 3 stays before a step that 0 and 1 have applied, and 2 is lost behind its vote."""
    same_as_undisturbed(tmp_path, "3:5:unheard", "2:5:voted", steps=8, OPTIMIZER="Own")
    assert sum(run_again(tmp_path / "job")[0]) == 1


@pytest.mark.nightly
def test_an_optimizer_that_runs_the_passes_itself_ends_the_job_and_is_named(tmp_path):
    done = train(tmp_path / "job", spares=0, OPTIMIZER="LBFGS")
    assert done.returncode != 0, done.stderr
    assert "optimizer: the step of torch.optim.lbfgs.LBFGS runs forward and backward" in done.stderr


@pytest.mark.nightly
def test_a_host_is_rebuilt_from_the_next_one_over_several_hosts(tmp_path):
    calm = train(tmp_path / "calm", spares=0)
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
            env={"FAULTS": "2:9:host", "MESH": str(RANKS)},
        )  # fmt: skip
        wait_until(lambda: (out / "struck.2-9-host").exists() or not job.running, LONG, "step 9")
        with cluster.inject(NodeKill("h2")):
            statuses = job.wait(LONG, but=("h2",))
        what = "\n".join(job.log(node).read_text() for node in job.hosts)
        assert set(statuses.values()) == {0}, what
        assert weights(out) == weights(tmp_path / "calm"), what
