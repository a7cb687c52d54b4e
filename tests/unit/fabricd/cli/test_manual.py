"""Completions and the manual's page: made from the commands, so they have all of them."""

import shutil
import subprocess

import pytest
import typer.main
from typer.testing import CliRunner

import fabricd.cli
from fabricd.cli import manual

TREE = manual.tree(typer.main.get_command(fabricd.cli.app))
NODES = list(manual.walk(TREE))


def made(*words):
    done = CliRunner().invoke(fabricd.cli.app, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_command_and_each_option_is_in_it(shell):
    text = made("completion", shell)
    for node in NODES:
        for option in node.options:
            for name in option.names:
                wanted = name.lstrip("-") if shell == "fish" else name
                assert wanted in text, (node.words, name)
        for child in node.children:
            assert child.words[-1] in text


def completed(*words):
    """What bash offers behind these words, the last of which is being typed."""
    script = (
        f"{made('completion', 'bash')}\n"
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        '_fabricctl; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_links_and_their_values():
    assert completed("fabricctl", "st") == ["status"]
    assert "timeline" in completed("fabricctl", "")
    assert set(completed("fabricctl", "config", "")) >= {"check", "show"}
    assert completed("fabricctl", "config", "check", "--js") == ["--json"]
    assert completed("fabricctl", "timeline", "--unt") == ["--until"]
    assert completed("fabricctl", "links", "-o", "w") == ["wide"]
    assert "lo" in completed("fabricctl", "drain", "l")
    assert "lo" in completed("fabricctl", "timeline", "--link", "l")


def test_another_shell_is_refused():
    done = CliRunner().invoke(fabricd.cli.app, ["completion", "csh"])
    assert done.exit_code == 2
    assert "bash, zsh, fish" in done.output


def test_the_page_has_every_command_and_no_word_is_a_request():
    page = made("manual")
    for node in NODES:
        if node.words and not node.children:
            assert f".SS {' '.join(node.words)}".replace("-", "\\-") in page
            for option in node.options:
                assert option.names[0].replace("-", "\\-") in page
    known = {".TH", ".SH", ".SS", ".TP", ".PP", ".B"}
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= known
    if groff := shutil.which("groff"):
        done = subprocess.run([groff, "-man", "-Tutf8", "-ww"], input=page, text=True,
                              capture_output=True, check=True)  # fmt: skip
        assert done.stderr == ""


def test_a_text_of_dots_and_backslashes_stays_a_text():
    node = manual.Node(("x",), ".SH \\fBfake", "", (), (manual.Option(("--a",), "", "'x"),))
    page = manual.man("p", "1", manual.Node((), "h", "", (), (), (node,)))
    assert "\\&.SH \\efBfake" in page
    assert "\\&'x" in page


def test_nothing_of_a_help_text_acts_in_fish():
    node = manual.Node(("x",), "don't `rm`", "", (), ())
    assert "'don\\'t `rm`'" in manual.fish("p", manual.Node((), "", "", (), (), (node,)))
