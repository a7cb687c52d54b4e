"""What others say cannot act on an operator's terminal: one way out for all of it."""

import ast
import io
from pathlib import Path

import pytest
import structlog
import typer
from rich.table import Table
from rich.text import Text

from compute.cli import base as compute_base
from fabric_train import run as fabric_run
from fabricd.cli.base import PlainConsole, fail
from fabricd.doctor.finding import Finding, Severity
from fabricd.doctor.report import finding_lines
from telemetry.metrics import render
from telemetry.service import logs
from telemetry.service.shown import escaped, on_one_line, shown
from telemetry.snapshot import HostSnapshot, Located

REPO = Path(__file__).parents[4]
HOSTILE = [
    "\x1b]0;owned\x07", "\x1b[31mred", "\x9b31m", "[/x]", "[red]x[/red]", "[link=file:///etc]x[/link]",
    "a\u202egpj.exe", "\u2066x\u2069", ":bomb:", "one\rtwo", "one\u2028two", "\x00\x7f", "one\ntwo",
]  # fmt: skip
SHIPPED = ("fabricd", "compute", "clocksync", "telemetry", "fabric_train")
CONSOLES = {"fabricd/cli/base.py"}


def harmless(text, allowed=""):
    return all(one.isprintable() or one in "\n" + allowed for one in text)


@pytest.mark.parametrize("words", HOSTILE)
def test_a_console_prints_them_as_they_are(words):
    file = io.StringIO()
    console = PlainConsole(file=file, width=200, force_terminal=False)
    table = Table("head", words)
    table.add_row(words, Text(words))
    for one in (words, f"job {words}", Text(words, style="red"), table):
        console.print(one)
    said = file.getvalue()
    assert harmless(said), repr(said)
    if words.isprintable():
        assert said.count(words) >= 3, "nothing of it is taken for markup or a code"
    assert "\U0001f4a3" not in said


def test_its_own_colours_stay():
    file = io.StringIO()
    PlainConsole(file=file, force_terminal=True, color_system="standard").print(
        Text("down\x1b[0m", style="red")
    )
    assert file.getvalue() == "\x1b[31mdown?[0m\x1b[0m\n"


def test_a_claim_makes_no_line_of_its_own():
    file = io.StringIO()
    PlainConsole(file=file, width=200).print("job gpt: x\nfence f1 applied")
    assert file.getvalue().count("\n") == 1


@pytest.mark.parametrize("words", HOSTILE)
def test_fabric_compute_and_fabric_run_print_them_as_they_are(words, capsys):
    compute_base.put(f"job gpt: {words}")
    compute_base.table([("job", "reason"), ("gpt", words)])
    compute_base.put_json({"reason": words})
    with pytest.raises(typer.Exit):
        compute_base.fail(words)
    fabric_run._report(f"job gpt failed: {words}")
    said = capsys.readouterr()
    assert harmless(said.out), repr(said.out)
    assert harmless(said.err), repr(said.err)
    assert len(said.out.splitlines()) == 6, "a line each, and three of JSON"


def test_several_problems_are_several_lines(capsys):
    with pytest.raises(typer.Exit):
        fail("line 1: no such rail\nline 2: \x1b[2Jno port")
    said = capsys.readouterr().err
    assert said == "fabricctl: line 1: no such rail\nline 2: ?[2Jno port\n"


@pytest.mark.parametrize("words", HOSTILE)
def test_the_doctor_prints_them_as_they_are(words):
    finding = Finding(next(iter(Severity)), words, words, words, (words,))
    assert all(harmless(line) for line in finding_lines(finding, ""))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_doctor_keeps_to_the_terminals_width(width):
    sentence = "The switch above the NIC turns requests of peers back, so each byte takes a way"
    finding = Finding(next(iter(Severity)), "rail0", sentence, sentence, (sentence,))
    lines = list(finding_lines(finding, "docs/x.md", width))
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()).count("takes a way") == 3


@pytest.mark.parametrize("words", HOSTILE)
def test_what_is_printable_stays(words):
    assert shown(words).replace("?", "") in words.replace("?", "") or not words.isprintable()
    assert len(shown(words)) == len(on_one_line(words)) == len(words)
    assert "\n" not in on_one_line(words)


@pytest.mark.parametrize("words", HOSTILE)
def test_log_lines_have_them_as_they_are(words, capfd):
    """Neither a terminal nor journald, which hides a line with such a character as a blob."""
    before = structlog.get_config()
    for style in ("logfmt", "json"):
        logs.setup(style=style)
        log = structlog.get_logger()
        log.warning(f"job {words}", reason=words, count=3, hosts=[words], error=ValueError(words))
        try:
            raise ValueError(words)
        except ValueError:
            log.exception("failed", known=None, fine=True)
    structlog.configure(**before)
    said = capfd.readouterr().err
    assert harmless(said), repr(said)
    assert said.count("\n") == 4, "a line each"
    assert "count=3" in said


@pytest.mark.parametrize("words", HOSTILE)
def test_labels_of_metrics_have_them_as_they_are(words):
    """And two names stay two: one series twice would spoil the whole scrape."""
    names = (words, words.replace("\x1b", "\x1c").replace("\n", "\r"), f"{words}?", "\\x1b")
    where = tuple(Located("leaf", name, "both") for name in dict.fromkeys(names))
    body, _ = render(HostSnapshot("h0", located=where))
    said = [line for line in body.decode().splitlines() if line.startswith("fabricd_located{")]
    assert harmless(body.decode())
    assert len(set(said)) == len(where)


def test_escaped_texts_differ_where_their_texts_do():
    assert escaped("a\x1b[0m\\\u202e") == r"a\x1b[0m\\\u202e"
    assert len({escaped(one) for one in ("\x1b", "\\x1b", "?", "\\\\x1b")}) == 4


RAW = {
    ("fabricd/daemon.py", "f'{options.config}: valid\\n'"): "the file that root names",
    (
        "fabricd/clock/__main__.py",
        "f'fabric-clock cannot start: {where}: {error.strerror}\\n'",
    ): "the file that root names",
    ("fabricd/cli/plugin_commands.py", "text"): "of `plugin env`: lines for a shell, quoted",
    ("fabricd/predict/child.py", "f'not a request: {error!r}\\n'"): "repr escapes",
    ("fabric_train/messages/plain_text.py", "f'{_plain(text)}\\n'"): "the way out of fabric_train",
    ("fabric_train/messages/plain_text.py", "f'\\r\\x1b[K{_plain(text)}\\r'"): "the other one",
    ("fabric_train/agent/outputs.py", "number + 1, text"): "what the user's own ranks print",
    ("fabric_train/agent/log_files.py", "file, left"): "the same, into a file",
}
"""What is written as it is, with why it may."""
HARMLESS = ("shown(", "on_one_line(", "json.dumps(")


def raw_writes(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {
            "sys.stdout.write", "sys.stderr.write", "print", "typer.echo", "typer.secho",
            "click.echo", "os.write", "sys.stdout.buffer.write",
        }:  # fmt: skip
            text = ", ".join(map(ast.unparse, node.args))
            if not any(way in text for way in HARMLESS):
                yield text


def test_there_is_one_way_out():
    found = {
        (str(file.relative_to(REPO)), text)
        for package in SHIPPED
        for file in (REPO / package).rglob("*.py")
        for text in raw_writes(file)
    }
    assert found == set(RAW), "write by `put`, `out`, `err`, `say`, or give the reason here"


def test_there_is_one_console():
    made = {
        str(file.relative_to(REPO))
        for package in SHIPPED
        for file in (REPO / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console"
    }
    assert made <= CONSOLES, "PlainConsole of fabricd/cli/base.py prints what others say"
