"""Rails, management and broker fail apart under real jobs: who is replaced, and who is not.

What has to come out is what comes out undisturbed, bit by bit (see ``test_takeover``).
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from datetime import datetime

import pytest
import test_plugin_backend
import test_takeover
from test_host_takeover import LONG, await_marks, records, said
from test_plugin_backend import variables
from test_takeover import RANKS, SCRIPT, STEPS, weights

from lab.cluster import Cluster, wait_until
from lab.faults.catalog import BlackHole, NodeKill
from lab.node import REPO
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), pytest.mark.xdist_group("takeover")]

AWAY_S = 0.8


class ManagementHole(BlackHole):
    """Everything between a host and the management network is dropped."""

    def _ports(self, target):
        return [self.site.topology.management_port(target.host)]


class Halves:
    """Two sides of a lab that hear each other on no network; ``offline``: without the broker."""

    def __init__(self, cluster, near, far, *, offline=()):
        self.cluster, self.sides, self.offline = cluster, (near, far), offline

    def __enter__(self):
        for mine, others in (self.sides, self.sides[::-1]):
            for host in mine:
                drop = [one for other in others for one in self._addresses(other)]
                if host in self.offline:
                    drop.append(self.cluster.topology.management4())
                self._nft(host, "add table inet half", "add chain inet half in "
                          "{ type filter hook input priority 0; }")  # fmt: skip
                v4 = ", ".join(one for one in drop if ":" not in one)
                v6 = ", ".join(one for one in drop if ":" in one)
                self._nft(host, f"add rule inet half in ip saddr {{ {v4} }} drop",
                          f"add rule inet half in ip6 saddr {{ {v6} }} drop")  # fmt: skip
        return self

    def __exit__(self, *_):
        for host in (*self.sides[0], *self.sides[1]):
            self._nft(host, "delete table inet half")

    def _addresses(self, host):
        topology = self.cluster.topology
        yield topology.management4(host)
        for rail in range(topology.rails):
            yield topology.address4(host, rail)
            yield topology.address6(host, rail)

    def _nft(self, host, *commands):
        done = self.cluster.nodes[host].run(["nft", "; ".join(commands)])
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Backend → what comes out of it; the two sum in another order."""
    known = {}

    def weights_of(backend, steps=STEPS):
        if (backend, steps) not in known:
            directory = tmp_path_factory.mktemp("undisturbed") / "job"
            trains = {"plugin": test_plugin_backend.train, "gloo": test_takeover.train}
            done = trains[backend](directory, spares=0, steps=steps)
            assert done.returncode == 0, done.stderr
            known[backend, steps] = weights(directory)
        return known[backend, steps]

    return weights_of


@pytest.fixture
def lab(request):
    """A started lab with daemons, broker and fabric-compute; ``away_s`` is the lab's."""
    topology = Topology(
        name="apart", hosts=getattr(request, "param", 5), rails=2, rate_bps=200_000_000,
        management=True,
    )  # fmt: skip
    with Cluster(topology=topology) as cluster:
        management = Management(cluster)
        management.start_broker()
        management.start_compute(policy={"away_s": AWAY_S})
        cluster.start_daemons(mode="migrate", broker=management.broker_table)
        yield cluster, management


def start(cluster, *faults, spares=1, backend="plugin", options=(), pause_s=0.06, steps=STEPS):
    out = cluster.dir.root / "out"
    out.mkdir()
    rails = ",".join(f"rail{rail}" for rail in range(cluster.topology.rails))
    env = {"FAULTS": ",".join(faults), "PAUSE_S": str(pause_s)}
    if backend == "plugin":
        env |= variables(NCCL_SOCKET_IFNAME=rails)
    return TrainingJob(
        cluster, SCRIPT, [str(steps), str(out)], nodes=RANKS, spares=spares,
        options=["--standby", "0", "--backend", backend, *options], env=env,
    ), out  # fmt: skip


def attempts(out):
    """How many attempts of steps all ranks have begun."""
    return sum(len(one.read_text().splitlines()) for one in out.glob("attempts.*"))


def logged_s(management, event, since):
    """Seconds from ``since`` (of time.time) to the log's first line of that event after it."""
    for line in (management.dir / "c0.log").read_text().splitlines():
        row = json.loads(line) if line.startswith("{") else {}
        if row.get("event") == event:
            at = datetime.fromisoformat(row["timestamp"]).timestamp()
            if at >= since:
                return at - since
    return None


def committed_s(management):
    """Seconds from the first evidence to a step of all ranks, of each takeover of a host."""
    return [one["committed_ms"] / 1000 for one in records(management, "recovery") if one["ranks"]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("plugin", ()),
        pytest.param("gloo", ("--interface", "rail0"), marks=pytest.mark.nightly),
    ],
)
def test_a_host_whose_rails_are_all_dead_is_replaced(lab, undisturbed, backend, options):
    cluster, management = lab
    marks = "2:9:marked", "2:20:marked"
    job, out = start(cluster, *marks, backend=backend, options=options)
    await_marks(out, job, marks[0])
    with cluster.inject(BlackHole("h2")):
        time.sleep(0.5)
    await_marks(out, job, marks[1])
    with cluster.inject(BlackHole("h2")):
        began = time.time()
        wait_until(lambda: committed_s(management) or not job.running, LONG, "the takeover")
    statuses = job.wait(LONG)
    what = said(cluster, job, management)
    assert statuses == {"h0": 0, "h1": 0, "h2": 1, "h3": 0, "h4": 0}, what
    assert weights(out) == undisturbed(backend), what
    (fence,) = records(management, "fence")
    assert (fence["host"], fence["last_will"]) == ("h2", False)
    assert "without a step of the job" in fence["reason"]
    times = [logged_s(management, event, began) for event in ("fence", "recovery")]
    assert all(times), "half a second before it was not replaced"
    print(f"{backend}: fenced and replaced {times} s after its rails died")


@pytest.mark.nightly
def test_steps_of_ten_seconds_are_no_excuse(lab, undisturbed):
    """The rails die while no collective is due for seconds."""
    cluster, management = lab
    job, out = start(cluster, pause_s=10.0, steps=6)
    wait_until(lambda: attempts(out) >= 3 * RANKS or not job.running, LONG, "the third step")
    time.sleep(3.0)
    with cluster.inject(BlackHole("h2")):
        began = time.time()
        wait_until(lambda: committed_s(management) or not job.running, LONG, "the takeover")
    print(f"fenced {logged_s(management, 'fence', began)} s after its rails died")
    assert set(job.wait(LONG, but=("h2",)).values()) == {0}, said(cluster, job, management)
    assert weights(out) == undisturbed("plugin", 6)


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [8, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_host_whose_management_is_cut_trains_on(lab, seconds):
    cluster, management = lab
    job, out = start(cluster, pause_s=seconds / 20)
    wait_until(lambda: attempts(out) > 2 * RANKS or not job.running, LONG, "the first steps")
    with cluster.inject(ManagementHole("h2")):
        before = attempts(out)
        time.sleep(seconds)
        during = attempts(out) - before
    what = said(cluster, job, management)
    assert not records(management, "fence"), what
    assert not records(management, "recovery"), what
    assert during >= 4 * RANKS, what
    assert set(job.wait(LONG).values()) == {0}, what


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [4], indirect=True)
def test_an_even_split_fences_nobody_and_the_job_goes_on(lab, undisturbed):
    """h0 and h1 have the broker. For 25 s no half hears the other on any network."""
    cluster, management = lab
    job, out = start(cluster, "0:9:marked", spares=0)
    await_marks(out, job, "0:9:marked")
    with Halves(cluster, (0, 1), (2, 3), offline=(2, 3)):
        time.sleep(25)
        stood = attempts(out)
    what = said(cluster, job, management)
    assert not records(management, "fence"), what
    held = [one for one in records(management, "phase") if one["phase"] == "held"]
    assert held, what
    assert "no majority" in held[-1]["reason"]
    assert set(job.wait(LONG).values()) == {0}, said(cluster, job, management)
    assert attempts(out) > stood
    assert weights(out) == undisturbed("plugin")
    assert not records(management, "fence")


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [6], indirect=True)
def test_half_of_a_job_is_lost_for_good_and_somebody_confirms_it(lab, undisturbed):
    """Two hosts with ranks and a spare of six; the spare that is left has two processes."""
    cluster, management = lab
    job, out = start(cluster, "0:9:marked", spares=2, options=("--standby", "1"))
    await_marks(out, job, "0:9:marked")
    lost = ("h2", "h3", "h5")
    with contextlib.ExitStack() as faults:
        for host in lost:
            faults.enter_context(cluster.inject(NodeKill(host)))
        wait_until(lambda: is_held(management) or not job.running, LONG, "the job is held")
        time.sleep(3.0)
        assert not records(management, "fence"), said(cluster, job, management)
        began = time.time()
        confirm_lost(management, "h2")
        statuses = job.wait(LONG, but=lost)
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed("plugin"), what
    fences = {one["host"]: one["reason"] for one in records(management, "fence")}
    assert set(fences) == {"h2", "h3"}, what
    assert fences["h2"] == "confirmed lost: the PDU is off"
    print(f"recovered {logged_s(management, 'recovery', began)} s after it was confirmed")


def is_held(management):
    held = [one for one in records(management, "phase") if one["phase"] == "held"]
    return bool(held) and "no majority" in held[-1]["reason"]


def confirm_lost(management, host):
    subprocess.run(
        [sys.executable, "-m", "compute", "confirm-lost", host, "--reason", "the PDU is off",
         "--config", str(management.dir / "c0.toml")],
        env={**os.environ, "PYTHONPATH": str(REPO)}, check=True,
    )  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [3], indirect=True)
def test_a_rank_that_crashes_at_once_on_one_host_runs_on_another(lab, undisturbed):
    """Two hosts with two ranks each: rank 3 dies on h1 each time, its neighbour stays."""
    cluster, management = lab
    out = cluster.dir.root / "out"
    out.mkdir()
    job = TrainingJob(
        cluster, SCRIPT, [str(STEPS), str(out)], nodes=2, spares=1, ranks_per_host=2,
        options=["--standby", "1"],
        env_of_host=lambda node: {"BROKEN_GPU": "3"} if node.name == "h1" else {},
    )  # fmt: skip
    statuses = job.wait(LONG)
    what = said(cluster, job, management)
    assert set(statuses.values()) == {0}, what
    assert weights(out) == undisturbed("gloo"), what
    moves = [(one["ranks"], one["from"], one["to"]) for one in records(management, "recovery")]
    assert moves == [([3], ["h1"], ["h2"])], what
    [left_out] = records(management, "slot_left_out")
    assert (left_out["host"], left_out["rank"]) == ("h1", 3)
    assert not records(management, "fence"), what
