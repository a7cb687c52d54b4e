"""``--help`` of the installed programs and of each of their subcommands: what a newcomer tries."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import fabricd.cli

REPO = Path(__file__).resolve().parents[4]
BIN = Path(sys.executable).parent
SCRIPTS = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]


def run(*argv):
    return subprocess.run(
        [str(BIN / argv[0]), *argv[1:]], capture_output=True, text=True, timeout=60, check=False
    )


def commands(command, words):
    """Every command of the tree with the words that lead to it."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, [*words, name])


TREE = list(commands(typer.main.get_command(fabricd.cli.app), []))


@pytest.mark.parametrize("program", sorted(SCRIPTS))
def test_each_program_is_installed_and_explains_itself(program):
    (installed,) = entry_points(group="console_scripts", name=program)
    assert installed.value == SCRIPTS[program]
    shown = run(program, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert "usage" in shown.stdout.lower()
    assert "example" in shown.stdout.lower()
    assert program in shown.stdout


def test_the_subcommands_are_those_documented():
    names = {" ".join(words) for words, _ in TREE}
    assert {"status", "links", "timeline", "events", "promote", "top", "plugin env"} <= names


OPERATE = REPO / "docs/operate"
OPERATING = [*sorted((OPERATE / "runbook").glob("*.md")), OPERATE / "health-checks.md"]
QUOTED = sorted(
    {
        " ".join(found.split())
        for page in OPERATING
        for found in re.findall(r"`fabricctl ([a-z][^`]*)`", page.read_text())
    }
)


@pytest.mark.parametrize("line", QUOTED)
def test_what_the_runbook_says_to_type_is_no_wrong_usage(line, tmp_path, monkeypatch):
    """No daemon answers there: 1 is what is left, and nothing is done."""
    monkeypatch.chdir(tmp_path)
    environment = {"FABRIC_CTL_SOCKET": str(tmp_path / "ctl.sock")}
    words = shlex.split(line)
    if any(known == words and getattr(command, "commands", {}) for known, command in TREE):
        return  # a group of commands is meant
    done = CliRunner().invoke(fabricd.cli.app, words, env=environment, input="")
    assert done.exit_code in {0, 1, 3}, done.output
    assert "Usage:" not in done.output
    assert "allowed:" not in done.output


@pytest.mark.parametrize(("words", "command"), TREE, ids=[" ".join(w) or "-" for w, _ in TREE])
def test_each_subcommand_explains_itself_and_its_options(words, command):
    shown = CliRunner().invoke(fabricd.cli.app, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    assert " ".join(["fabricctl", *words][-1:]) in shown.output or not words
    assert command.help, "no sentence about the command"
    for parameter in command.params:
        for option in parameter.opts:
            assert option.lstrip("-") in shown.output.lower(), f"{option} is not shown"
        assert parameter.help, f"{parameter.opts[0]} is not explained"


@pytest.mark.parametrize(
    ("program", "wrong"), [("fabricd", "--no-such-option"), ("fabricctl", "no-such-command")]
)
def test_what_is_no_option_is_refused_with_status_2(program, wrong):
    shown = run(program, wrong)
    assert shown.returncode == 2
    assert wrong in shown.stderr
    assert "Traceback" not in shown.stderr
