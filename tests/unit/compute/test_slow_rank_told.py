"""A slow rank is told wherever people look, and is never a reason to fence or to move anything."""

import json
from dataclasses import replace

import pytest
from job_world import JOB, TICK_S
from prometheus_client.exposition import generate_latest
from test_compute_explain import Site
from test_partitions import run
from typer.testing import CliRunner

from compute.board import JobBoard
from compute.cli import app
from compute.decide.decider import STATE_S
from compute.decide.effects import FenceIssued, JobState, Order, Record
from compute.intake import Intake
from compute.metrics import ComputeMetrics, Figures
from fabric_train.messages.step_window import BLOCKS, StepWindow
from telemetry.messages.documents import ComputeJob, RankSlowness, parse

WINDOW_S = 12.0
MS = 1_000_000
SENTENCE = (
    "rank 2 on h2 is slow: 1.20 times the median of the ranks in time of its own, 48 ms of each "
    "step of 60 ms; the others wait 8 ms for it"
)


def measured(host, own_ms):
    """The host's documents say windows of steps, with ``own_ms()`` of each step."""
    document = host.document

    def with_window(now):
        said = document(now)
        last = 8 * int(now / WINDOW_S)
        if said.running == 0 or last < 8:
            return said
        window = StepWindow(said.running, last, 8, 8 * 60 * MS, [round(own_ms() * MS)] * BLOCKS)
        return replace(said, processes=[replace(one, window=window) for one in said.processes])

    host.document = with_window


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.own_ms = {"h2": 48.0}
    site.effects = []
    decide = site.world.deciders["c0"].decide

    def kept(now):
        effects = decide(now)
        site.effects += effects
        return effects

    site.world.deciders["c0"].decide = kept
    for name, host in site.world.hosts.items():
        measured(host, lambda name=name: site.own_ms.get(name, 40.0))
    run(site.world, 4)
    yield site
    site.store.close()


def states(site):
    return [one.state for one in site.effects if isinstance(one, JobState)]


def test_it_is_in_the_ledger_the_state_and_what_people_read_and_decides_nothing(site):
    orders = [one for one in site.effects if isinstance(one, Order)]
    run(site.world, 45)
    assert states(site)[-1].slow_ranks == [
        RankSlowness(rank=2, host="h2", ratio=1.2, text=SENTENCE)
    ]
    [record] = [x for x in site.effects if isinstance(x, Record) and x.kind == "slow_rank"]
    assert record.fields == {
        "job": JOB, "generation": 1, "rank": 2, "host": "h2", "state": "named", "ratio": 1.2,
        "reason": SENTENCE,
    }  # fmt: skip
    assert f"  {SENTENCE}\n" in site.explain("h2")
    assert "  slow_rank: generation 1; host h2; job gpt; rank 2; ratio 1.2; " in site.explain("h2")
    assert SENTENCE not in site.explain("h1")
    [part] = json.loads(site.explain("h2", "--json"))["jobs"]
    assert part["slow_ranks"][0]["ratio"] == 1.2
    text = site.explain(JOB)
    assert text.startswith("job gpt: running, generation 1\n")
    assert f"  h2: ranks 2\n  h3: ranks 3\n  {SENTENCE}\nledger\n" in text
    assert json.loads(site.explain(JOB, "--json"))["slow_ranks"] == part["slow_ranks"]
    assert "nosuch: it has a part in no job" in site.explain("nosuch", code=1)
    listed = CliRunner().invoke(app, ["jobs", "--config", str(site.config)])
    assert f"job gpt: {SENTENCE}\n" in listed.output

    assert [one for one in site.effects if isinstance(one, Order)] == orders
    assert not [one for one in site.effects if isinstance(one, FenceIssued)]
    assert site.world.violations == []
    published = len(states(site))
    run(site.world, 30)
    assert len(states(site)) == published, "no state is published for each window"

    site.own_ms = {}
    run(site.world, 45)
    assert states(site)[-1].slow_ranks == []
    assert [x.fields["state"] for x in site.effects if isinstance(x, Record)
            and x.kind == "slow_rank"] == ["named", "cleared"]  # fmt: skip


def test_who_is_named_is_told_at_once_and_not_when_the_job_is_looked_at_again(site):
    decider = site.world.deciders["c0"]
    for _ in range(1200):
        site.world.tick()
        if decider._jobs[JOB].slow.named:
            break
    told = site.world.now + STATE_S + 2 * TICK_S
    while site.world.now < told:
        site.world.tick()
    assert states(site)[-1].slow_ranks


def test_a_job_that_does_not_run_has_no_slow_rank(site):
    run(site.world, 45)
    for name in ("h1", "h4", "h5"):
        site.world.hosts[name].paused = True
    run(site.world, 8)
    held = [one for one in states(site) if one.phase == "held"]
    assert held
    assert all(one.slow_ranks == [] for one in held)


def test_the_metric_has_a_series_for_each_slow_rank_alone():
    board = JobBoard()
    metrics = ComputeMetrics(Figures("c0", "1.0"), board, Intake(None))
    named = RankSlowness(rank=2, host="h2", ratio=1.2, text=SENTENCE)
    for slow in ([named], []):
        board.update("gpt", ComputeJob(job="gpt", phase="running", slow_ranks=slow))
        text = generate_latest(metrics.registry).decode()
        sample = 'fabric_compute_slow_rank_ratio{host="h2",rank="2",training_job="gpt"} 1.2\n'
        assert (sample in text) is bool(slow)
        assert text.count("\nfabric_compute_slow_rank_ratio{") == len(slow)


def test_a_state_without_a_slow_rank_is_as_the_version_before_reads_it():
    plain = ComputeJob(job="gpt", phase="running")
    assert "slow_ranks" not in plain.model_dump(mode="json")
    assert "slow_ranks" not in plain.model_dump_json()
    slow = ComputeJob(
        job="gpt", phase="running",
        slow_ranks=[RankSlowness(rank=2, host="h2", ratio=1.2, text=SENTENCE)],
    )  # fmt: skip
    assert parse(ComputeJob, json.loads(slow.model_dump_json())) == slow
    assert parse(ComputeJob, json.loads(plain.model_dump_json())) == plain
