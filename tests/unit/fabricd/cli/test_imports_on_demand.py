"""A command imports what it needs: fabricctl runs in health checks, beside jobs, on busy hosts."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
import typer.main
from typer.testing import CliRunner

import fabricd.cli

REPO = Path(__file__).resolve().parents[4]
HEAVY = frozenset(
    {"structlog", "numpy", "sqlite3", "torch", "scapy", "fabricd.engine", "fabricd.config.loader",
     "fabricd.doctor.checks", "telemetry.snapshot", "fabricd.detect.evidence", "asyncio"}
)  # fmt: skip
LIGHT = ("status", "links", "check", "timeline", "top", "jobs", "drain", "explain", "version")


@pytest.mark.parametrize("module", fabricd.cli.MODULES)
def test_each_module_adds_the_commands_that_it_is_said_to(module):
    app = fabricd.cli.application([fabricd.cli.MODULES[module][0]])
    found = typer.main.get_command(app).commands
    assert set(found) == set(fabricd.cli.MODULES[module])


@pytest.mark.parametrize("word", LIGHT)
def test_a_command_imports_nothing_heavy(word):
    code = f"import sys, fabricd.cli; fabricd.cli.application([{word!r}]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "fabricd.cli.base" in loaded
    assert loaded & HEAVY == set()


def test_what_is_no_command_has_all_of_them_to_choose_from():
    everything = {word for words in fabricd.cli.MODULES.values() for word in words}
    for words in (None, ["--help"], ["statsu"]):
        app = fabricd.cli.application(words)
        assert set(typer.main.get_command(app).commands) == everything
    shown = CliRunner().invoke(fabricd.cli.application(["statsu"]), ["statsu"])
    assert shown.exit_code == 2
    assert "status" in shown.output


def test_a_shell_that_completes_gets_all_commands(monkeypatch):
    monkeypatch.setenv(fabricd.cli.COMPLETION, "complete_bash")
    app = fabricd.cli.application(["status"])
    assert "timeline" in typer.main.get_command(app).commands


def test_the_version_is_said_without_a_command():
    app = fabricd.cli.application(["--version"])
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output.startswith("fabricctl ")


def test_without_a_command_it_is_the_status(tmp_path):
    shown = CliRunner().invoke(
        fabricd.cli.application([]), [], env={"FABRIC_CTL_SOCKET": str(tmp_path / "none.sock")}
    )
    assert shown.exit_code == 1
    assert "none.sock" in shown.output
