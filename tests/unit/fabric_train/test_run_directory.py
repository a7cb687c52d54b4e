"""The directory of a fabric-run: removed by the next one after a kill, and by nobody before."""

import signal
import subprocess
import sys
import threading

import pytest

from fabric_train.agent import run_directory as module
from fabric_train.agent.run_directory import PREFIX, SOCKET, remove_stale, run_directory

HOLDS = """
import sys
from pathlib import Path
from fabric_train.agent.run_directory import SOCKET, run_directory

with run_directory(Path(sys.argv[1])) as directory:
    (directory / SOCKET).touch()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another fabric-run's process, which has a directory."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.directory = tmp_path / process.stdout.readline().decode().strip()
        yield process
        process.kill()


def below(path):
    return {one.name for one in path.iterdir()}


def test_it_is_private_and_goes_with_the_block(tmp_path):
    with run_directory(tmp_path) as directory:
        assert directory.parent == tmp_path
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / SOCKET).touch()
    assert below(tmp_path) == set()


def test_a_living_one_stays_and_a_killed_one_is_removed(tmp_path, other):
    assert remove_stale(tmp_path) == []
    assert (other.directory / SOCKET).exists()
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (other.directory / SOCKET).exists()
    with run_directory(tmp_path) as directory:
        assert below(tmp_path) == {directory.name}


def test_an_orderly_end_removes_it(tmp_path, other):
    other.communicate()
    assert other.returncode == 0
    assert below(tmp_path) == set()


def test_what_a_fabric_run_did_not_make_stays(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / SOCKET).touch()
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}file").touch()
    (parent / f"{PREFIX}open").mkdir()
    (parent / f"{PREFIX}open").chmod(0o755)
    (parent / "another").mkdir(mode=0o700)
    (parent / f"{PREFIX}full").mkdir(mode=0o700)
    (parent / f"{PREFIX}full" / "work").touch()
    before = below(parent)
    assert remove_stale(parent) == []
    assert below(parent) == before
    assert (elsewhere / SOCKET).exists()
    (parent / f"{PREFIX}foreign").mkdir(mode=0o700)
    monkeypatch.setattr(module.os, "geteuid", lambda: 4711)
    assert remove_stale(parent) == []
    monkeypatch.undo()
    assert remove_stale(parent) == [f"{PREFIX}foreign"]


def test_a_missing_parent_has_nothing_to_remove(tmp_path):
    assert remove_stale(tmp_path / "none") == []


def test_of_many_that_start_at_once_each_has_its_own(tmp_path):
    """One may take another's new directory for a stale one, before that is locked."""
    may_end, problems = threading.Event(), []
    ready = threading.Semaphore(0)

    def start():
        try:
            with run_directory(tmp_path) as directory:
                (directory / SOCKET).touch()
                ready.release()
                assert may_end.wait(60)
                assert (directory / SOCKET).exists()
        except BaseException as error:
            problems.append(error)
            ready.release()

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert ready.acquire(timeout=60)
    assert len(below(tmp_path)) == len(threads)
    may_end.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert below(tmp_path) == set()


def test_a_directory_that_another_one_removed_is_made_again(tmp_path, monkeypatch):
    real, taken = module._opened, []

    def opened(name):
        if not taken:
            taken.append(name)
            assert remove_stale(tmp_path) == [name.rpartition("/")[2]]
        return real(name)

    monkeypatch.setattr(module, "_opened", opened)
    with run_directory(tmp_path) as directory:
        assert str(directory) not in taken
        assert directory.is_dir()
    assert below(tmp_path) == set()
