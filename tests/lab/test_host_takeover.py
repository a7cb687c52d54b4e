"""A host dies, the job does not: real daemons, probes, broker, fabric-compute and training ranks.

What has to come out is what comes out undisturbed, bit by bit (see ``test_takeover``).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from test_takeover import RANKS, SCRIPT, STEPS, struck, train, weights

from lab.cluster import Cluster, wait_until
from lab.faults.catalog import NodeFreeze, NodeKill
from lab.node import REPO
from lab.services.management import Management, TrainingJob, ledger_command
from lab.topology import Topology

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), pytest.mark.xdist_group("takeover")]

LONG = 240.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed") / "job"
    done = train(directory, spares=0)
    assert done.returncode == 0, done.stderr
    return weights(directory)


@pytest.fixture
def lab(request):
    """A started lab of ``hosts`` with daemons, broker and fabric-compute ``c0``."""
    hosts = getattr(request, "param", 5)
    topology = Topology(
        name="takeover", hosts=hosts, rails=2, rate_bps=200_000_000, management=True
    )
    with Cluster(topology=topology) as cluster:
        management = Management(cluster)
        management.start_broker()
        management.start_compute()
        cluster.start_daemons(mode="migrate", broker=management.broker_table)
        yield cluster, management


def start(cluster, *faults, spares=1, standby=0):
    out = cluster.dir.root / "out"
    out.mkdir()
    return TrainingJob(
        cluster, SCRIPT, [str(STEPS), str(out)], nodes=RANKS, spares=spares,
        options=["--standby", str(standby)], env={"FAULTS": ",".join(faults)},
    ), out  # fmt: skip


def said(cluster, job, management):
    logs = [f"--- {node.name}\n{job.log(node).read_text()}" for node in job.hosts]
    return "\n".join([*logs, (management.dir / "c0.log").read_text()])


def await_marks(out, job, *marks):
    """Until all ``marks`` are struck: a rank waits there for what is done to its host."""
    wanted = {mark.replace(":", "-") for mark in marks}
    wait_until(lambda: struck(out) >= wanted or not job.running, LONG, f"{wanted}")


def records(management, kind):
    entries = map(json.loads, ledger_command(management, "export").splitlines())
    rows = [json.loads(entry["line"]) for entry in entries]
    return [row["fields"] for row in rows if row["kind"] == kind]


def fabricctl(node, *words):
    """The JSON answer of the node's daemon."""
    command = [sys.executable, "-m", "fabricd.cli", *words, "--json"]
    done = subprocess.run(
        [*command, "--socket", str(node.run_dir / "ctl.sock")],
        env={**os.environ, "PYTHONPATH": str(REPO)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_a_frozen_host_is_replaced_and_changes_nothing_when_it_wakes(lab, undisturbed):
    cluster, management = lab
    job, out = start(cluster, "1:9:forward", "2:19:marked", "0:30:marked", standby=1)
    await_marks(out, job, "2:19:marked")
    with cluster.inject(NodeFreeze("h2")):
        await_marks(out, job, "0:30:marked")
    # Rank 0 waits in step 30: the woken host has the time to do harm.
    statuses = job.wait(LONG)
    what = said(cluster, job, management)
    assert statuses == {"h0": 0, "h1": 0, "h2": 1, "h3": 0, "h4": 0}, what
    assert weights(out) == undisturbed, what
    crash, frozen = records(management, "recovery")
    assert (crash["ranks"], crash["to"], crash["steps_lost"]) == ([1], ["h1"], 0)
    assert (frozen["ranks"], frozen["to"], frozen["steps_lost"]) == ([2], ["h4"], 0)
    assert 9 <= crash["step"] < 19 <= frozen["step"] < 30
    (fence,) = records(management, "fence")
    assert (fence["host"], fence["last_will"]) == ("h2", False)
    assert len(fence["silent"]) >= 3
    assert "fenced" in job.log(cluster.nodes[2]).read_text()
    assert ledger_command(management, "verify")
    told = fabricctl(cluster.nodes[0], "migrations")["migrations"]
    assert [(one["ranks"], one["from"], one["to"]) for one in told] == [
        ([2], ["h2"], ["h4"]),
        ([1], ["h1"], ["h1"]),
    ]
    (job,) = fabricctl(cluster.nodes[0], "explain", "host", "h2")["jobs"]
    assert job["evidence"]["fence"] == fence["id"]


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [6], indirect=True)
def test_two_hosts_without_power_at_once(lab, undisturbed):
    cluster, management = lab
    job, out = start(cluster, "1:9:marked", "2:9:marked", spares=2)
    await_marks(out, job, "1:9:marked", "2:9:marked")
    with cluster.inject(NodeKill("h1")), cluster.inject(NodeKill("h2")):
        statuses = job.wait(LONG, but=("h1", "h2"))
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed, what


@pytest.mark.nightly
def test_the_store_s_host_dies_and_broker_and_fabric_compute_with_it(lab, undisturbed):
    cluster, management = lab
    job, out = start(cluster, "0:9:marked")
    await_marks(out, job, "0:9:marked")
    with cluster.inject(NodeKill("h0")):
        management.broker.kill()
        management.computes["c0"].kill()
        statuses = job.wait(LONG, but=("h0",))
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed, what


@pytest.mark.nightly
def test_without_a_spare_the_job_is_held_until_one_comes(lab, undisturbed):
    cluster, management = lab
    job, out = start(cluster, "3:9:marked")
    cluster.nodes[4].popen(["true"]).wait()
    await_marks(out, job, "3:9:marked")
    with cluster.inject(NodeKill("h4")), cluster.inject(NodeKill("h3")):
        wait_until(
            lambda: "no warm spare for rank 3" in (management.dir / "c0.log").read_text(),
            LONG, "held",
        )  # fmt: skip
        time.sleep(1)
        assert set(job.running) >= {"h0", "h1", "h2"}
    wait_until(lambda: cluster.nodes[4].daemon.running, LONG, "fabricd on h4 again")
    job.start_on(cluster.nodes[4])
    statuses = job.wait(LONG, but=("h3",))
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed, what


@pytest.mark.nightly
def test_a_drained_host_hands_its_rank_over_and_loses_no_step(lab, undisturbed):
    cluster, management = lab
    job, out = start(cluster, "1:9:marked", "0:25:marked")
    await_marks(out, job, "1:9:marked")
    config = str(management.dir / "c0.toml")
    command = [sys.executable, "-m", "compute", "drain", "h1", "--config", config]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    subprocess.run(command, env=env, check=True, capture_output=True)
    statuses = job.wait(LONG)
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed, what
    (move,) = records(management, "recovery")
    assert (move["class"], move["ranks"], move["to"]) == ("planned", [1], ["h4"])
    assert records(management, "fence") == []


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [3], indirect=True)
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_a_rank_on_a_gpu_that_is_called_broken_moves_and_its_neighbour_stays(
    lab, undisturbed, dies
):
    cluster, management = lab
    out = cluster.dir.root / "out"
    out.mkdir()
    job = TrainingJob(
        cluster, SCRIPT, [str(STEPS), str(out)], nodes=RANKS // 2, spares=1, ranks_per_host=2,
        options=["--standby", "1"],
        env={"FAULTS": "3:9:marked,0:25:marked" + ",3:9:forward" * dies},
    )  # fmt: skip
    await_marks(out, job, "3:9:marked")
    config = str(management.dir / "c0.toml")
    command = [sys.executable, "-m", "compute", "confirm-broken", "h1", "--rank", "3"]
    command += ["--reason", "Xid 79", "--config", config]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    subprocess.run(command, env=env, check=True, capture_output=True)
    wait_until(lambda: records(management, "slot_left_out"), LONG, "taken")
    statuses = job.wait(LONG)
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed, what
    moves = records(management, "recovery")
    assert (moves[0]["ranks"], moves[0]["to"]) == ([3], ["h2"]), what
    assert {one["steps_lost"] for one in moves} == {0}, what
    assert dies or [one["class"] for one in moves] == ["planned"], what
    assert records(management, "fence") == []


BUSY_S = 1800.0


@pytest.mark.nightly
@pytest.mark.timeout(BUSY_S + 900)
@pytest.mark.parametrize("lab", [8], indirect=True)
def test_busy_hosts_whose_probers_are_paused_are_not_lost(lab):
    """Both cores loaded; every few seconds one host's prober stands still for up to 2 s."""
    cluster, management = lab
    out = cluster.dir.root / "out"
    out.mkdir()
    job = TrainingJob(
        cluster, SCRIPT, ["1000000", str(out)], nodes=6, spares=2,
        options=["--standby", "0"], env={"PAUSE_S": "0.5", "FAULTS": ""},
    )  # fmt: skip
    log = management.dir / "c0.log"
    wait_until(lambda: '"phase": "running"' in log.read_text(), LONG, "the job's start")
    pick = random.Random(1)
    spin = "while True: pass"
    load = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        end = time.monotonic() + BUSY_S
        while time.monotonic() < end:
            node = pick.choice(cluster.nodes)
            node.kill_prober(signal.SIGSTOP)
            time.sleep(pick.uniform(0.1, 2.0))
            node.kill_prober(signal.SIGCONT)
            time.sleep(pick.uniform(1.0, 6.0))
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert len(job.running) == 8, said(cluster, job, management)
    assert records(management, "fence") == []
    assert records(management, "recovery") == []
