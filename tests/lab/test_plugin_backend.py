"""Training over the network plugin in host memory: collectives, takeovers, and a NIC that fails.

What has to come out is what comes out undisturbed, bit by bit (see ``test_takeover``).
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_takeover
from test_failover import assert_given_up
from test_takeover import RANKS, SCRIPT, STEPS, struck, weights

from lab.cluster import Cluster, wait_until
from lab.faults.catalog import Carrier, NodeFreeze
from lab.node import REPO
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), pytest.mark.xdist_group("takeover")]

LONG = 240.0
# A library with a sanitizer cannot be loaded into Python.
PLUGIN = REPO / "build" / "release" / "nccl_plugin" / "libnccl-net-fabric.so"
RANK = Path(__file__).with_name("collective_ranks.py")


def variables(**more):
    return {"NCCL_NET_PLUGIN": str(PLUGIN), "FABRIC_TRAIN_BACKEND": "plugin", **more}


def train(directory, *faults, **options):
    directory.mkdir()
    run_dir = {"FABRIC_RUN_DIR": str(directory)}
    return subprocess.run(
        test_takeover.command(directory, **options),
        env=test_takeover.environment(*faults, **variables(**run_dir)), cwd=directory,
        check=False, capture_output=True, text=True, timeout=500,
    )  # fmt: skip


class Ranks:
    """``collective_ranks.py`` as processes of this machine."""

    def __init__(self, mode, out):
        environment = test_takeover.environment(
            **variables(NCCL_SOCKET_IFNAME="lo", FABRIC_RUN_DIR=str(out))
        )
        self.processes = [
            subprocess.Popen(
                [sys.executable, RANK, str(rank), str(RANKS), Path(out, "store"), mode, out],
                env=environment, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def ended(self, count=RANKS):
        for process in self.processes[:count]:
            error = process.communicate(timeout=LONG)[1]
            assert process.returncode == 0, error


def test_every_collective_agrees_with_gloo_and_repeats_bit_by_bit(tmp_path):
    with Ranks("agree", tmp_path) as ranks:
        ranks.ended()
    assert len({(tmp_path / f"hash.{rank}").read_text() for rank in range(RANKS)}) == 1


def test_a_killed_rank_ends_collectives_and_so_does_an_abort(tmp_path):
    with Ranks("stuck", tmp_path) as ranks:
        wait_until((tmp_path / "ready").exists, LONG, "ranks in a collective")
        time.sleep(0.5)
        (tmp_path / "abort").touch()
        wait_until((tmp_path / "error.0").exists, LONG, "an end by abort")
        ranks.processes[-1].send_signal(signal.SIGKILL)
        ranks.ended(RANKS - 1)
    took, _, error = (tmp_path / "error.0").read_text().partition(" ")
    assert error == "generation 1 has ended"
    assert float(took) < 20  # milliseconds on a machine at rest; FABRIC_DEADLINE is 120 s
    for rank in range(1, RANKS - 1):
        assert "rank" in (tmp_path / f"error.{rank}").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed") / "job"
    done = train(directory, spares=0)
    assert done.returncode == 0, done.stderr
    return weights(directory)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "faults", [("2:13:forward",), ("0:0:backward", "1:13:forward", "3:19:optimizer")]
)
def test_ranks_killed_in_a_step_change_nothing(undisturbed, tmp_path, faults):
    done = train(tmp_path / "job", *faults)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == undisturbed
    found = test_takeover.records(tmp_path / "job")
    assert [row["ranks"] for row in found] == [[int(fault.split(":")[0])] for fault in faults]


@pytest.mark.nightly
def test_losses_during_a_recovery_change_nothing(undisturbed, tmp_path):
    faults = ("0:5:backward", "1:-1:sending", "0:-1:corrupting", "0:20:forward", "3:20:forward")
    done = train(tmp_path / "job", *faults, spares=2)
    assert done.returncode == 0, done.stderr
    assert struck(tmp_path / "job") == {fault.replace(":", "-") for fault in faults}
    assert weights(tmp_path / "job") == undisturbed


@pytest.mark.nightly
def test_connections_that_fail_without_a_loss_are_made_anew(undisturbed, tmp_path):
    done = train(tmp_path / "job", "2:11:disconnected", spares=0)
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path / "job") == undisturbed


# Over the rails of a lab


@pytest.fixture
def lab(request, lab_name):
    """A started lab of ``hosts`` with daemons, broker and fabric-compute ``c0``."""
    topology = Topology(
        name=lab_name, hosts=getattr(request, "param", RANKS), rails=2, rate_bps=200_000_000,
        management=True,
    )  # fmt: skip
    with Cluster(topology=topology) as cluster:
        management = Management(cluster)
        management.start_broker()
        management.start_compute()
        cluster.start_daemons(mode="migrate", broker=management.broker_table)
        yield cluster


def start(cluster, *faults, spares=0):
    out = cluster.dir.root / "out"
    out.mkdir()
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    environment = variables(FAULTS=",".join(faults), NCCL_SOCKET_IFNAME="rail", PYTHONPATH=path)
    return TrainingJob(
        cluster, SCRIPT, [str(STEPS), str(out)], nodes=RANKS, spares=spares,
        options=["--standby", "0"], env=environment,
    ), out  # fmt: skip


def await_mark(out, job, mark):
    """Until ``mark`` is struck: a rank waits there for what is done to a NIC or a host."""
    wait_until(lambda: mark in struck(out) or not job.running, LONG, mark)


def said(job):
    return "\n".join(f"--- {node.name}\n{job.log(node).read_text()}" for node in job.hosts)


@pytest.mark.nightly
def test_a_nic_unplugged_during_training_changes_nothing(lab, undisturbed):
    job, out = start(lab, "1:9:marked", "2:25:marked")
    await_mark(out, job, "1-9-marked")
    since = time.monotonic_ns()
    with lab.inject(Carrier("h0:rail0")):
        await_mark(out, job, "2-25-marked")
        assert_given_up(lab, since)
    assert set(job.wait(LONG).values()) == {0}, said(job)
    assert weights(out) == undisturbed, said(job)
    assert "taken over" not in said(job)


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [RANKS + 1], indirect=True)
def test_a_frozen_host_is_replaced_over_the_rails_that_are_left(lab, undisturbed):
    job, out = start(lab, "2:9:marked", "0:30:marked", spares=1)
    await_mark(out, job, "2-9-marked")
    with lab.inject(Carrier("h1:rail1")), lab.inject(NodeFreeze("h2")):
        await_mark(out, job, "0-30-marked")
    statuses = job.wait(LONG)
    assert statuses == {"h0": 0, "h1": 0, "h2": 1, "h3": 0, "h4": 0}, said(job)
    assert weights(out) == undisturbed, said(job)
