"""``fabric-compute explain``: from decisions in virtual time, through the store, to the text."""

import json

import pytest
from job_world import JOB, World
from test_partitions import run
from typer.testing import CliRunner

from compute.cli import app
from compute.decide.effects import JobState, Record
from compute.store import NewRecord, Store


class Site:
    """A world whose only fabric-compute stores what it decides; commands read that."""

    def __init__(self, where, seed=1, **arguments):
        self.where, self.world = where, World(seed, computes=1, **arguments)
        self.config = where / "compute.toml"
        self.config.write_text(
            f'name = "c0"\nstate_dir = "{where}"\nstop_file = "{where}/STOP"\n'
            '[broker]\nhost = "127.0.0.1"\n'
        )
        (where / "mode").write_text("migrate\n")
        self.store = Store(where / "compute.db")
        decider = self.world.deciders["c0"]
        decide = decider.decide

        def stored(now):
            effects = decide(now)
            records = [NewRecord(e.kind, e.fields) for e in effects if isinstance(e, Record)]
            states = [e.state for e in effects if isinstance(e, JobState) and e.state]
            self.store.commit((), records, states)
            return effects

        decider.decide = stored

    def explain(self, host, *words, code=0):
        words = ["explain", host, *words, "--config", str(self.config)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, done.output
        return done.output + done.stderr


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    run(site.world, 4)
    yield site
    site.store.close()


def test_a_host_that_was_lost_says_where_its_rank_went_and_why(site):
    site.world.hosts["h2"].paused = True
    run(site.world, 6)
    text = site.explain("h2")
    assert "job gpt: moved: rank 2 to h4 in generation 2 (host: " in text
    assert "rule: lost: gone on the job's network and on the other one" in text
    assert "silent to: h0, h1, h3, h4, h5" in text
    assert "fence: gpt/h2/i0" in text
    found = json.loads(site.explain("h2", "--json"))
    kinds = [one["kind"] for one in found["history"]]
    assert kinds == ["fence", "recovery"]
    assert found["jobs"][0]["ranks"] == []
    target = json.loads(site.explain("h4", "--json"))
    assert target["jobs"][0]["ranks"] == [2]
    assert [one["kind"] for one in target["history"]] == ["recovery"]
    assert "not moved: not lost: nothing speaks against it" in site.explain("h4")


def test_a_host_that_one_peer_calls_silent_says_which_rule_keeps_it(site):
    site.world.cut.add(frozenset(("h1", "h5")))
    run(site.world, 3)
    text = site.explain("h1")
    assert "job gpt: not moved: not lost: most that probe it hear it on the job's network" in text
    assert "silent to: h5" in text
    assert "heard by: h0, h2, h3, h4" in text


def test_what_operators_said_comes_before_the_evidence(site):
    (site.where / "STOP").write_text("switch work\n")
    assert "not moved: stopped: switch work" in site.explain("h1")
    (site.where / "STOP").unlink()
    site.config.write_text(
        site.config.read_text() + '[[maintenance]]\nhosts = ["h1"]\n'
        "begin = 2020-01-01T00:00:00Z\nend = 2090-01-01T00:00:00Z\n"
    )
    assert "not moved: it is in maintenance: nothing is decided over it" in site.explain("h1")


def test_in_observe_mode_it_says_so(tmp_path):
    site = Site(tmp_path)
    (tmp_path / "mode").write_text("observe\n")
    site.world.deciders["c0"].set_mode("observe", 0.0)
    run(site.world, 4)
    site.world.hosts["h3"].paused = True
    run(site.world, 4)
    assert (
        "not moved: mode observe; lost: gone on the job's network and on the other one"
        in site.explain("h3")
    )
    site.store.close()


def test_a_job_without_a_spare_waits_and_the_fenced_host_says_for_what(tmp_path):
    site = Site(tmp_path, seed=4, nodes=3, spares=1)
    run(site.world, 4)
    site.world.hosts["h1"].up = False
    run(site.world, 5)
    site.world.hosts["h2"].up = False
    run(site.world, 5)
    text = site.explain("h2")
    assert "job gpt: not moved: it is fenced, and job gpt waits: no warm spare for rank" in text
    site.store.close()


def test_a_host_that_nobody_knows_is_an_error(site):
    assert "h77: it has a part in no job" in site.explain("h77", code=1)
    assert "h7" * 40 in site.explain("h7" * 500, code=1)


def test_a_drained_host_says_what_it_waits_for(site):
    for name in ("h4", "h5"):
        site.world.deciders["c0"].drain(name, site.world.now)
    site.world.deciders["c0"].drain("h1", site.world.now)
    (site.where / "drained.json").write_text(json.dumps({"h1": "", "h4": "", "h5": ""}))
    run(site.world, 3)
    text = site.explain("h1")
    assert "drained" in text
    assert f"job {JOB}: not moved: h1 is drained, but there is no warm spare for rank 1" in text
