"""Files are born with the rights that they end with, and never written through a link."""

import ast
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabricd.cli import app
from telemetry.service import durable

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def births(monkeypatch):
    """(name, mode) of each file at the moment that os.open created it, under a umask of 0."""
    seen = []
    opened = os.open

    def watch(path, flags, mode=0o777, **rest):
        fd = opened(path, flags, mode, **rest)
        if flags & os.O_CREAT:
            seen.append((Path(path).name, stat.S_IMODE(os.fstat(fd).st_mode)))
        return fd

    monkeypatch.setattr(os, "open", watch)
    before = os.umask(0)
    yield seen
    os.umask(before)


def test_a_key_is_never_open_to_others_while_it_is_rotated(tmp_path, births):
    key = tmp_path / "probe.key"
    key.touch(0o600)
    key.write_text("ab" * 32 + "\n")
    for step in ("add", "use", "drop"):
        done = CliRunner().invoke(app, ["key", "rotate", step, "--key-file", str(key)])
        assert done.exit_code == 0, done.output
    made = [mode for name, mode in births if name.startswith(".probe.key.")]
    assert made == [0o600] * 3, births
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_file_has_its_mode_from_its_first_moment_on(tmp_path, births, mode, umask):
    os.umask(umask)
    durable.replace_text(tmp_path / "x", "text", mode)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
    assert births[0][1] & ~mode == 0, "born with a right that it loses later"


def test_what_lies_under_the_temporary_name_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f".x.{os.getpid()}").symlink_to(victim)
    durable.replace_text(tmp_path / "x", "new")
    assert victim.read_text() == "kept"
    assert (tmp_path / "x").read_text() == "new"
    assert not (tmp_path / "x").is_symlink()


def test_a_lock_is_nobody_elses_to_take(tmp_path):
    path = tmp_path / "lock"
    path.touch(0o644)  # as an earlier version left it
    os.close(durable.open_lock(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        durable.open_lock(tmp_path / "link")


_WRITERS = {"write_text", "write_bytes", "NamedTemporaryFile", "mkstemp", "mktemp", "touch"}
_EXCLUSIVE = {"O_EXCL", "O_NOFOLLOW"}
_ALONE = {
    ("telemetry/service/durable.py", "open_lock"): "locks are opened, not made anew",
}


def _calls(tree):
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    yield function, node


def _wrong(function, call):
    """Why a call makes a file in a way that leaves a moment for others; "": it does not."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    words = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    if name in _WRITERS:
        return f"{name}(): use telemetry.service.durable"
    if name == "open" and "O_CREAT" in {n.attr for a in call.args for n in ast.walk(a)
                                        if isinstance(n, ast.Attribute)} | (
            words if any(isinstance(a, ast.Name) and a.id == "flags" for a in call.args)
            else set()):  # fmt: skip
        return "" if words >= _EXCLUSIVE else "O_CREAT without O_EXCL and O_NOFOLLOW"
    if name in ("open", "fdopen"):
        of_descriptor = call.args and isinstance(call.args[0], ast.Name) and call.args[0].id == "fd"
        modes = [a.value for a in [*call.args, *(k.value for k in call.keywords)]
                 if isinstance(a, ast.Constant) and isinstance(a.value, str)]  # fmt: skip
        if any(set(m) <= set("rwabx+t") and set(m) & set("wax+") for m in modes):
            return "" if of_descriptor else "open() to write: use telemetry.service.durable"
    return ""


@pytest.mark.patient
def test_no_other_code_makes_files_by_itself():
    found = []
    for package in ("fabricd", "telemetry", "clocksync", "compute"):
        for file in sorted((REPO / package).rglob("*.py")):
            where = str(file.relative_to(REPO))
            for function, call in _calls(ast.parse(file.read_text())):
                if (why := _wrong(function, call)) and (where, function.name) not in _ALONE:
                    found.append(f"{where}:{call.lineno}: {why}")
    assert found == []


def test_the_scan_itself_finds_what_it_looks_for():
    bad = """
def a(path):
    path.write_text("x")
def b(path):
    with path.open("w") as file: pass
def c(path):
    os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
def d(path):
    flags = os.O_RDWR | os.O_CREAT
    os.open(path, flags, 0o644)
def e(path):
    open(path, mode="ab")
"""
    good = """
def a(path):
    os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
def b(path):
    path.open("rb"), open(path), os.fdopen(fd, "wb"), tarfile.open(fileobj=x, mode="w:gz")
"""
    assert len([w for f, c in _calls(ast.parse(bad)) if (w := _wrong(f, c))]) == 5
    assert [w for f, c in _calls(ast.parse(good)) if (w := _wrong(f, c))] == []


def test_what_has_to_be_there_is_read_to_a_limit(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="No such file"):
        durable.require(path, 10)
    path.write_bytes(b"a\r\nb\rc\n")
    assert durable.require(path, 7) == b"a\r\nb\rc\n"
    assert durable.require_text(path, 7) == path.read_text() == "a\nb\nc\n"
    with pytest.raises(OSError, match="longer than 6 bytes"):
        durable.require_text(path, 6)
    path.write_bytes(b"a\n\xff")
    with pytest.raises(UnicodeDecodeError) as caught:
        durable.require_text(path, 7)
    assert caught.value.object == b"a\n\xff"
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        durable.require(Path("/dev/zero"), 1000)
