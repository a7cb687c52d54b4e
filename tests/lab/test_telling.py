"""What fabricctl says of jobs and lost hosts: a real fabricd, fabric-compute and mosquitto."""

import asyncio
import json
import subprocess
import sys

import pytest
from broker_lab import Daemon, FabricRun, until
from compute_world import JOB, REPO, Compute, Mosquitto, RealWorld, settings

from fabric_train.messages.documents import to_data
from telemetry.messages.documents import ComputeOrder, Fence

pytestmark = pytest.mark.timeout(240)
SPARE = "h3"


class DaemonLink:
    """The connection of one host of the world: its real fabricd, through the job socket."""

    def __init__(self, world, host, run):
        self.world, self.host, self.run = world, host, run
        self.read = 0

    def publish(self, document, observations):
        self.run.send("document", document=to_data(document))
        lines, self.read = self.run.lines[self.read :], len(self.run.lines)
        for line in lines:
            if line["kind"] == "order":
                order = ComputeOrder(jobs={JOB: line["order"]})
                self.world.orders[line["compute"], self.host] = order
            elif line["kind"] == "fence":
                fence = Fence(id=line["id"], job=JOB, host=line["host"],
                              incarnation=line["incarnation"])  # fmt: skip
                self.world.hosts[self.host].obey(ComputeOrder(fences=[fence]))
                self.run.send("fenced", id=line["id"])

    async def die(self):
        pass


def fabricctl(daemon, *words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "fabricd.cli", *words, "--socket", str(daemon.run_dir / "ctl.sock")],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def rows(daemon, kind):
    return [row["reason"] for row in daemon.ask("timeline", kind=kind)]


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path / "mosquitto")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
async def site(tmp_path, broker):
    """Two fabric-computes, hosts h0 to h2 with ranks, and the spare h3 with a real fabricd."""
    computes = [Compute(tmp_path, broker, name) for name in ("c0", "c1")]
    daemon = Daemon(tmp_path / SPARE, broker, SPARE)
    world = RealWorld(settings(broker), nodes=3, spares=1)
    await world.links.pop(SPARE).die()
    daemon.start()
    run = FabricRun(daemon, JOB, incarnation=world.hosts[SPARE].incarnation)
    try:
        await until(daemon.answers, "fabricd answers")
        await run.start()
        world.links[SPARE] = DaemonLink(world, SPARE, run)
        for one in computes:
            (one.directory / "state").mkdir(mode=0o750)
            one.call("promote", "migrate")
            one.start()
        yield world, daemon
    finally:
        await run.kill()
        await world.close()
        daemon.stop()
        for one in computes:
            if one.process is not None:
                one.kill()
    assert world.violations == []


async def test_a_host_of_the_job_says_who_was_lost_why_and_where_the_rank_went(site):
    world, daemon = site
    await world.until(lambda: world.step > 3, "the job trains")
    await world.until(lambda: rows(daemon, "generation"), "the generation is on the timeline")
    await world.kill("h1")
    await world.until(lambda: world.takeovers == 1, "the spare has taken over")
    await world.until(lambda: rows(daemon, "migration"), "the takeover is on the timeline")
    await world.go(1.5)

    [job] = json.loads(fabricctl(daemon, "jobs", "--json"))["jobs"]
    assert (job["job"], job["phase"], job["here"]) == (JOB, "running", "connected")
    assert [job["ranks"][str(rank)]["host"] for rank in range(3)] == ["h0", SPARE, "h2"]
    assert job["fenced"] == ["h1"]

    [move] = json.loads(fabricctl(daemon, "migrations", "--json"))["migrations"]
    assert (move["job"], move["class"], move["outcome"]) == (JOB, "host", "recovered")
    assert (move["ranks"], move["from"], move["to"]) == ([1], ["h1"], [SPARE])
    assert move["steps_lost"] == 0
    assert move["committed_ms"] > 0
    assert f"0 h0, 1 {SPARE}, 2 h2" in fabricctl(daemon, "jobs")
    assert "recovered" in fabricctl(daemon, "migrations")

    told = json.loads(fabricctl(daemon, "explain", "host", "h1", "--json"))
    [said] = told["jobs"]
    assert said["evidence"]["fence"] == f"{JOB}/h1/i0"
    assert said["evidence"]["silent"] == ["h0", "h2"]
    assert said["evidence"]["rule"].startswith("lost: ")
    assert SPARE in said["evidence"]["acknowledged"]
    [fence] = told["fences"]
    assert fence["applied"]
    assert "h1" in fabricctl(daemon, "explain", "host", "h1")
    assert "known:" in fabricctl(daemon, "explain", "host", "h77", code=1)

    before = rows(daemon, "generation"), rows(daemon, "migration")
    assert any(f"rank 1 moved from h1 to {SPARE}" in text for text in before[1])
    await restart(daemon)
    await until(lambda: daemon.ask("training_jobs")["jobs"][0].get("generation"), "it knows again")
    await asyncio.sleep(1.0)
    # The world stands still meanwhile, which may hold the job, and let it go on, once more.
    after = rows(daemon, "generation")
    assert after[: len(before[0])] == before[0], "kept"
    assert after.count(f"running: job {JOB}, generation 1") == 1, "written once"
    assert rows(daemon, "migration") == before[1], "written once"


async def restart(daemon):
    daemon.kill()
    daemon.start()
    await until(daemon.answers, "fabricd answers again")


async def test_without_a_broker_it_says_so(tmp_path):
    daemon = Daemon(tmp_path / "h0", None)
    daemon.start()
    try:
        await until(daemon.answers, "fabricd answers")
        assert "no job has a part on h0" in fabricctl(daemon, "jobs")
        for words in (["migrations"], ["explain", "host", "h1"]):
            assert "no [broker] in fabricd.toml" in fabricctl(daemon, *words, code=1)
    finally:
        daemon.stop()
