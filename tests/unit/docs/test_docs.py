"""The documentation: plain sentences, short pages, sound links, commands that exist."""

import argparse
import re
import shlex
from functools import cache

import pytest
import typer.main

import bench.__main__
import compute.cli
import fabric_train.run
import fabricd.cli
import lab.cli
from lab.docs import pages, reference
from lab.docs.pages import DOCS, REPO

PAGES = pages.pages()
TEXTS = {page: page.read_text() for page in PAGES}
NAMES = [str(page.relative_to(REPO)) for page in PAGES]

MOST_LINES = 300
MOST_COLUMNS = 100
MOST_WORDS = 35
MOST_LONG = 0.02


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_is_short_and_its_lines_are(page):
    lines = TEXTS[page].splitlines()
    assert len(lines) <= MOST_LINES
    wide = [n for n, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS and line[:1] != "|"]
    assert not wide, f"lines of more than {MOST_COLUMNS} columns: {wide}"


def test_few_sentences_are_long():
    every = [s for text in TEXTS.values() for s in pages.sentences(text)]
    long = [s for s in every if len(s.split()) > MOST_WORDS]
    assert len(every) > 1000
    assert len(long) < MOST_LONG * len(every), "\n".join(long)


def test_what_a_sentence_is():
    text = "# A. Heading\n\nOne `a. B` here. Two,\nwrapped: yes.\n\n- three\n\n```\nCo. De\n```\n"
    assert list(pages.sentences(text)) == ["One `x` here.", "Two, wrapped: yes.", "three"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_a_page_and_a_heading(page):
    dead = []
    for target in pages.links(TEXTS[page]):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in pages.anchors(file.read_text())):
            dead.append(target)
    assert not dead


TREES = (
    "fabricd|clocksync|telemetry|compute|fabric_train|lab|nccl_plugin|prober|deploy|systemd|"
    "bench|docs|examples|cmake|tests"
)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_a_page_names_are_there(page):
    named = re.findall(rf"`((?:{TREES})/[\w./-]+)`", TEXTS[page])
    gone = [n for n in named if not (REPO / n).exists() and not (REPO / "tests" / n).exists()]
    files = [f"/{path.relative_to(REPO)}" for path in sources()]
    short = re.findall(r"`(\w+(?:/\w+)*\.(?:py|h|cpp))`", TEXTS[page])
    gone += [n for n in short if not any(file.endswith(f"/{n}") for file in files)]
    assert gone == []


@cache
def sources():
    return [
        path for tree in TREES.split("|") for path in (REPO / tree).rglob("*.*") if path.is_file()
    ]


def test_every_page_is_in_the_navigation_once():
    nav = (REPO / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"^ *- (\S+\.md)$", nav, re.MULTILINE)
    there = [str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)]
    assert sorted(named) == sorted(there)


@pytest.mark.parametrize(
    ("page", "make"), reference.PAGES, ids=[page.stem for page, _ in reference.PAGES]
)
def test_generated_tables_are_as_the_code_has_them(page, make):
    text = page.read_text()
    assert make(text) == text, "run: python -m lab.docs"


@pytest.mark.parametrize(
    "page", [reference.CONFIGURATION, reference.COMPUTE], ids=["fabricd", "compute"]
)
def test_each_key_of_a_configuration_is_explained(page):
    generated = page.read_text().split(reference.BEGIN)[1].split(reference.END)[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| *(.*?) *\|$", generated, re.MULTILINE)
    assert len(rows) > 20
    assert [key for key, meaning in rows if not meaning] == []


# -- commands ------------------------------------------------------------------------------------

APPS = {
    "fabricctl": typer.main.get_command(fabricd.cli.app),
    "fabric-compute": typer.main.get_command(compute.cli.app),
}
LAB = typer.main.get_command(lab.cli.app)
RUN = (REPO / "lab" / "bootstrap.sh").read_text()
TIERS = {"unit", "native", "threads", "booted", "lab", "vm", "all", "nightly"}
END = {"&&", "||", ";", "|", ">", "<", "&", ")", "then", "2>&1", "#"}
PROGRAMS = {"fabricctl", "fabric-compute", "fabric-run", "./run"}


def commands_of(text):
    """Command lines of our programs on a page, in blocks and in sentences: program and words."""
    for block in pages.blocks(text):
        if block.info.partition(" ")[0] not in {"", "sh", "console"}:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            yield from command_of(line)
    for line in re.findall(r"`([^`]+)`", pages.without_code(text)):
        yield from command_of(" ".join(line.split()))


def command_of(line):
    bare = re.sub(r"^\s*[$#] ", "", line)
    for part in re.split(r"&&|\|\||;|\$\(|\|", bare):
        if not any(program in part for program in PROGRAMS):
            continue  # most lines: the lexer takes a while
        lexer = shlex.shlex(part, posix=True, punctuation_chars="()<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        try:
            words = list(lexer)
        except ValueError:  # an apostrophe in what a program prints
            continue
        for at, word in enumerate(words):
            name = word.rsplit("/", 1)[-1] if word.startswith("/opt/") else word
            if name in PROGRAMS and (at == 0 or words[at - 1] in {"--", "sudo", "exec"}):
                rest = words[at + 1 :]
                stop = [i for i, w in enumerate(rest) if w in END or w.startswith((">", "<"))]
                words = rest[: min(stop, default=len(rest))]
                if not words or re.match(r"[\w\[-]", words[0]):  # not the arrow of a picture
                    yield name, [w for w in words if w not in {"…", "..."}]
                break


LINES = sorted(
    {
        (name, tuple(words), str(page.relative_to(REPO)))
        for page, text in TEXTS.items()
        for name, words in commands_of(text)
        if words
    }
)


def no_such_option(command, words):
    """Of a click command: the first word that is no option or subcommand; None: all exist."""
    below = getattr(command, "commands", {})
    if command.context_settings.get("ignore_unknown_options"):
        return None  # it hands its words to another program
    for at, word in enumerate(words):
        if word == "--":
            return None
        if word.startswith("-"):
            known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
            if word.split("=")[0] not in known:
                return word
        elif below:
            if word.isupper():  # COMMAND stands for any
                return None
            return no_such_option(below[word], words[at + 1 :]) if word in below else word
    return None


def no_such_run(words):
    """The same of ``./run``."""
    name, rest = words[0], [w for w in words[1:] if w != "--"]
    if f"  {name}" not in RUN.split("EOF")[1]:
        return name
    if name == "lab":
        return no_such_option(LAB, words[1:])
    if name == "test" and rest and not rest[0].startswith("-"):
        return None if rest[0] in TIERS else rest[0]
    if name == "bench" and rest:
        return None if rest[0] in {*bench.__main__.BENCHES, "NAME"} else rest[0]
    return None


def no_such_fabric_run(words):
    parser: argparse.ArgumentParser = fabric_train.run._parser()
    script = next((i for i, w in enumerate(words) if w.endswith(".py")), len(words))
    known = {option for action in parser._actions for option in action.option_strings}
    wrong = [w for w in words[:script] if w.startswith("-") and w.split("=")[0] not in known]
    return wrong[0] if wrong else None


@pytest.mark.parametrize(("name", "words", "page"), LINES)
def test_a_command_line_of_the_docs_has_commands_and_options_that_exist(name, words, page):
    if name in APPS:
        wrong = no_such_option(APPS[name], words)
    else:
        wrong = (no_such_run if name == "./run" else no_such_fabric_run)(list(words))
    assert wrong is None, f"{page}: {name} {shlex.join(words)}: there is no {wrong}"


def test_there_are_commands_to_look_at():
    assert len(LINES) > 60
    assert {name for name, _, _ in LINES} == PROGRAMS


@pytest.mark.parametrize(
    "line",
    [
        "fabricctl links --no-such",
        "fabricctl no-such",
        "./run no-such",
        "./run bench no-such",
        "fabric-run --no-such train.py",
    ],
)
def test_a_wrong_command_line_is_found(line):
    ((name, words),) = command_of(line)
    look = no_such_run if name == "./run" else no_such_fabric_run
    assert (no_such_option(APPS[name], words) if name in APPS else look(words)) is not None
