"""Another user of the host tries to read the probe key while root rotates it."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabricd.cli import app

NOBODY = 65534


def _steal(directory: Path, root: int, report: int) -> None:
    """As nobody: open what root makes there as soon as it has a name; write how often it went."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    done = False

    def end(*_: object) -> None:
        nonlocal done
        done = True

    signal.signal(signal.SIGTERM, end)
    os.write(report, b"ready\n")
    draft = os.fspath(directory / f".probe.key.{root}")
    stolen = met = 0
    while not done:
        try:
            os.close(os.open(draft, os.O_RDONLY))
            stolen += 1
        except FileNotFoundError:
            pass
        except PermissionError:
            met += 1
    os.write(report, f"{stolen} {met}\n".encode())


@pytest.fixture
def public_directory():
    if os.geteuid() != 0:
        pytest.skip("needs root: root rotates, another user steals")
    with tempfile.TemporaryDirectory(prefix="fabric-key-", dir="/run") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.parametrize("steps", [150, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_a_spinning_opener_gets_no_key_out_of_many_steps(public_directory, steps):
    key = public_directory / "probe.key"
    key.touch(0o600)
    key.write_text("ab" * 32 + "\n")
    reader, writer = os.pipe()
    root = os.getpid()
    thief = os.fork()
    if thief == 0:
        try:
            _steal(public_directory, root, writer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        with os.fdopen(reader) as report:
            assert report.readline() == "ready\n"
            for number in range(steps):
                step = ("add", "use", "drop")[number % 3]
                done = CliRunner().invoke(app, ["key", "rotate", step, "--key-file", str(key)])
                assert done.exit_code == 0, done.output
            os.kill(thief, signal.SIGTERM)
            stolen, met = map(int, report.readline().split())
    finally:
        os.kill(thief, signal.SIGKILL)
        os.waitpid(thief, 0)
    assert met > 0, "the thief never met a temporary file: nothing was tried"
    assert stolen == 0, f"{stolen} opens of a file that holds, or will hold, the key"
