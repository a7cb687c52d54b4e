"""Commands of docs/operate/get-started.md and docs/design/use-the-lab.md work, in their order."""

import shlex
import subprocess
import sys
import time

import pytest

from lab.docs import pages

pytestmark = pytest.mark.nightly  # a minute of a lab; test_docs.py looks at the words each time

STARTED = pages.DOCS / "operate" / "get-started.md"
LAB = pages.DOCS / "design" / "use-the-lab.md"


def commands_of(page):
    """What stands on the page behind ``./run``."""
    return [
        shlex.split(line, comments=True)[1:]
        for block in pages.blocks(page.read_text())
        for line in block.text.splitlines()
        if line.startswith("./run lab")
    ]


def lab(words, name):
    """`./run lab` of its own name, as its bootstrap calls it."""
    named = [] if words[1] == "list" else ["--name", name]
    argv = [sys.executable, "-m", *words[:2], *named, *words[2:]]
    return subprocess.run(
        argv, cwd=pages.REPO, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.parametrize("page", [STARTED, LAB], ids=lambda page: page.stem)
def test_every_command_works(lab_name, page):
    commands = commands_of(page)
    assert len(commands) > 8
    try:
        for words in commands:
            if words[-1] == "--follow":  # for ever, in a terminal of its own
                words = [*words[:-1], "--count", "5"]
            done = lab(words, lab_name)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            if words[1] == "up":
                until_up(lab_name)
            if words[-1] == "rail1":
                assert "down" in done.stdout
            if words[-1] == "located":
                assert "link h0/0" in done.stdout
    finally:
        lab(["lab", "down"], lab_name)


def test_the_python_example_works(lab_name):
    """As a script of its own, and it leaves no lab behind."""
    (block,) = (b for b in pages.blocks(LAB.read_text()) if b.info == "python")
    named = block.text.replace('"mine"', repr(lab_name))
    assert named != block.text
    seen = "\nprint(all(not rank.errors for rank in results), len(truth))\n"
    done = subprocess.run(
        [sys.executable, "-c", named + seen],
        cwd=pages.REPO, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sound, rows = done.stdout.splitlines()[-1].split()
    assert sound == "True"
    assert int(rows) > 40  # 20 cycles of the flap, each down and up
    assert lab_name not in lab(["lab", "list"], lab_name).stdout


def until_up(name, seconds=120):
    end = time.monotonic() + seconds
    while lab(["lab", "exec", "h0", "--", "fabricctl", "status"], name).returncode != 0:
        assert time.monotonic() < end, "the daemon does not answer"
        time.sleep(1)
