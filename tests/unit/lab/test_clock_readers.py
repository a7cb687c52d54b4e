"""`booted` runs what reads a clock, and leaves the pure cores out."""

from pathlib import Path

import pytest

from lab.testrun.clock_readers import REPO, clock_readers, main

FILES = {
    "tests/unit/test_own_clock.py": "import time\n",
    "tests/unit/test_own_wait.py": "async def test_it():\n    pass\n",
    "tests/unit/deep/test_late_import.py": "def test_it():\n    from time import monotonic\n",
    "tests/unit/test_shell.py": "from product import shell\n",
    "tests/unit/test_shell_member.py": "from product.shell import Shell\n",
    "tests/unit/test_world.py": "from world import World\n",
    "tests/unit/test_neighbour.py": "from test_own_clock import x\n",
    "tests/unit/test_core.py": "import json\nfrom product import core\n",
    "tests/unit/test_names.py": "import timeit\nfrom product import core  # time\n",
    "tests/unit/helper.py": "import time\n",
    "tests/unit/shared/world.py": "import asyncio\n",
    "product/__init__.py": "",
    "product/shell.py": "import time\n",
    "product/core.py": "def step(now):\n    return now\n",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_files_count_whose_clock_is_their_own_or_that_of_what_they_import(checkout):
    found = clock_readers(checkout / "tests/unit", checkout)
    assert [path.name for path in found] == [
        "test_late_import.py", "test_neighbour.py", "test_own_clock.py", "test_own_wait.py",
        "test_shell.py", "test_shell_member.py", "test_world.py",
    ]  # fmt: skip


def test_shells_count_in_this_tree_and_cores_do_not():
    found = {path.name for path in clock_readers(REPO / "tests/unit")}
    assert {"test_daemon_start.py", "test_daemon_control.py", "test_clock_page.py"} <= found
    assert {"test_daemon_damping.py", "test_daemon_machine.py", "test_decider.py"} & found == set()


def test_a_folder_without_any_is_a_mistake(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1


def test_the_paths_are_those_that_pytest_takes(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    assert main(["tests/unit"]) == 0
    assert Path(capsys.readouterr().out.splitlines()[0]).parts[:2] == ("tests", "unit")
