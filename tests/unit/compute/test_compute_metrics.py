"""fabric-compute's endpoint and commands: clean for promtool, and as the docs say."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main
from prometheus_client.exposition import generate_latest
from typer.testing import CliRunner

from compute.board import JobBoard
from compute.cli import app
from compute.failures import complete, failure_of
from compute.intake import Intake
from compute.metrics import ComputeMetrics, Figures
from fabric_train.messages.documents import AgentDocument, ProcessState
from telemetry.http_server import Request
from telemetry.messages.documents import ComputeJob, HostStatus

ROOT = Path(__file__).resolve().parents[3]


class Scene:
    def __init__(self):
        self.board, self.figures = JobBoard(), Figures("c0", "1.0", connected=True)
        self.intake = Intake(None)
        self.metrics = ComputeMetrics(self.figures, self.board, self.intake)

    def text(self):
        return generate_latest(self.metrics.registry).decode()

    def value(self, sample):
        [line] = [x for x in self.text().splitlines() if x.startswith(f"{sample} ")]
        return float(line.rpartition(" ")[2])

    def job(self, phase="running", states=("warm", "warm", "warm")):
        ranks = {"0": "h0 p0", "1": "h1 p1"}
        self.board.update("gpt", ComputeJob(job="gpt", phase=phase, generation=3, ranks=ranks))
        documents = {
            (f"h{i}", "gpt"): AgentDocument(
                "gpt", f"h{i}", "i", 2, 1, 1, "a:1", "a:2", "t", [ProcessState(f"p{i}", state)]
            )
            for i, state in enumerate(states)
        }
        self.board.observe(documents)


@pytest.fixture
def scene():
    return Scene()


def test_promtool_finds_nothing(scene):
    scene.job()
    scene.intake.statuses["h0"] = HostStatus(online=True)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scene.text(), text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_state_that_the_broker_does_not_take_is_named_with_its_size(scene):
    assert "oversize_state_bytes{" not in scene.text()
    scene.figures.oversize_bytes = {"compute.job": 300_000}
    assert scene.value('fabric_compute_oversize_state_bytes{kind="compute.job"}') == 300_000


def test_docs_and_endpoint_agree(scene):
    text = (ROOT / "docs/reference/compute.md").read_text()
    row = re.compile(r"^\| `(fabric_compute\w*)(?:\{[^}]*\})?` \| (\w+) \|", re.MULTILINE)
    shown = re.findall(r"^# TYPE (\S+) (\w+)$", scene.text(), re.MULTILINE)
    assert sorted(row.findall(text)) == sorted(shown)


@pytest.mark.parametrize("file", ["prometheus/rules.yml", "grafana/fabric-compute.json"])
def test_rules_and_dashboard_use_only_metrics_that_exist(scene, file):
    shown = re.findall(r"^# TYPE (\S+) (\w+)$", scene.text(), re.MULTILINE)
    known = {name for name, _ in shown} | {
        f"{name}_{part}"
        for name, kind in shown
        if kind in ("histogram", "summary")
        for part in ("bucket", "sum", "count")
    }
    used = set(re.findall(r"fabric_compute_\w+", (ROOT / "deploy" / file).read_text()))
    assert used
    assert used <= known


@pytest.mark.parametrize(
    ("phase", "states", "protected", "spares"),
    [
        ("running", ("warm", "warm", "warm"), 1, 1),
        ("running", ("warm", "warm", "starting"), 0, 0),
        ("running", ("warm", "joined", "warm"), 0, 1),
        ("waiting", ("warm", "warm", "warm"), 0, 1),
    ],
)
def test_who_is_protected(scene, phase, states, protected, spares):
    scene.job(phase, states)
    assert scene.value('fabric_compute_job_protected{training_job="gpt"}') == protected
    assert scene.value('fabric_compute_job_spares{training_job="gpt"}') == spares


def test_whether_a_job_was_protected_is_fixed_before_its_failure(scene):
    scene.job()
    scene.job("held", ("warm", "ended"))
    assert scene.board.is_protected("gpt")
    scene.job("running", ("warm", "ended"))
    assert scene.board.is_protected("gpt"), "it has not run with all its ranks since"
    scene.job("running", ("warm", "warm"))
    assert not scene.board.is_protected("gpt"), "the spare is used up"


def test_a_recovery_is_counted_with_its_pause(scene):
    fields = {"job": "gpt", "ranks": [1], "reason": "h1 is lost", "committed_ms": 400.0,
              "class": "host", "steps_lost": 0}  # fmt: skip
    scene.metrics.failure(failure_of("recovery", complete("recovery", fields, protected=True,
                                                          ranks=4)))  # fmt: skip
    key = 'fabric_compute_recoveries_total{class="host",outcome="recovered"}'
    assert scene.value(key) == 1
    assert scene.value('fabric_compute_pause_seconds_bucket{le="0.5"}') == 1
    assert scene.value('fabric_compute_pause_seconds_bucket{le="0.25"}') == 0


async def test_ready_only_with_a_complete_view(scene):
    routes = scene.metrics.routes()
    request = Request("GET", "/")
    assert (await routes["/readyz"](request)).status == 200
    scene.figures.connected = False
    assert (await routes["/readyz"](request)).status == 503
    assert (await routes["/ledger/head"](request)).status == 404
    scene.figures.head = "{}"
    assert (await routes["/ledger/head"](request)).body == b"{}\n"


PAGES = sorted((ROOT / "docs/operate").rglob("*.md"))
QUOTED = sorted(
    {
        " ".join(found.split())
        for page in PAGES
        for found in re.findall(r"`fabric-compute ([a-z][^`]*)`", page.read_text())
    }
)


@pytest.mark.parametrize("line", QUOTED)
def test_what_the_docs_say_to_type_is_no_wrong_usage(line, tmp_path, monkeypatch):
    """There is no configuration: that is what is left to be wrong, and nothing is done."""
    monkeypatch.chdir(tmp_path)
    words = [{"N": "3"}.get(word, word) for word in shlex.split(line)]
    place = ["--config", "/no/such.toml"]
    if words[0] in ("broker", "certificates"):
        place = ["--dir", str(tmp_path / "b"), "--authority", str(tmp_path / "a")]
    done = CliRunner().invoke(
        app, [*words, *place, *(["--write-only"] if words[0] == "broker" else [])]
    )
    assert done.exit_code in {0, 1, 2}, done.output
    assert "Usage:" not in done.output + done.stderr


def _commands(command, words):
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, [*words, name])


TREE = list(_commands(typer.main.get_command(app), []))


@pytest.mark.parametrize(("words", "command"), TREE, ids=[" ".join(w) or "-" for w, _ in TREE])
def test_each_command_explains_itself_and_its_options(words, command):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    assert command.help
    assert "example" in shown.output.lower() or getattr(command, "commands", {})
    for parameter in command.params:
        for option in parameter.opts:
            assert option.lstrip("-") in shown.output.lower(), f"{option} is not shown"
        assert parameter.help, f"{parameter.opts[0]} is not explained"
