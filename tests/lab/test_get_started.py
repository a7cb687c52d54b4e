"""What docs/operate/get-started.md says to type works, in its order, on a lab of two hosts."""

import shlex
import subprocess
import sys
import time

import pytest

from lab.docs import pages

pytestmark = pytest.mark.nightly  # a minute of a lab; test_docs.py looks at the words each time

PAGE = pages.DOCS / "operate" / "get-started.md"
COMMANDS = [
    shlex.split(line)[1:]
    for block in pages.blocks(PAGE.read_text())
    for line in block.text.splitlines()
    if line.startswith("./run lab")
]


def lab(words, name):
    """`./run lab` of its own name, as its bootstrap calls it."""
    argv = [sys.executable, "-m", *words[:2], "--name", name, *words[2:]]
    return subprocess.run(
        argv, cwd=pages.REPO, capture_output=True, text=True, timeout=180, check=False
    )


def test_every_command_works(lab_name):
    assert len(COMMANDS) > 8
    try:
        for words in COMMANDS:
            if words[-1] == "--follow":  # for ever, in a terminal of its own
                words = [*words[:-1], "--count", "5"]
            done = lab(words, lab_name)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            if words[1] == "up":
                until_up(lab_name)
            if words[-1] == "rail1":
                assert "down" in done.stdout
    finally:
        lab(["lab", "down"], lab_name)


def until_up(name, seconds=120):
    end = time.monotonic() + seconds
    while lab(["lab", "exec", "h0", "--", "fabricctl", "status"], name).returncode != 0:
        assert time.monotonic() < end, "the daemon does not answer"
        time.sleep(1)
