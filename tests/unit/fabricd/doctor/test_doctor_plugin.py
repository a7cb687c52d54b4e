"""The plugin's library: found, described by its bytes, loaded in a process of its own."""

import hashlib
import re
import subprocess
from pathlib import Path

import pytest
from host_trees import PLUGIN, Host, seen
from hypothesis import given
from hypothesis import strategies as st

from fabricd import __version__
from fabricd.doctor.finding import Severity
from fabricd.doctor.gather import plugin
from fabricd.doctor.machine import ThisMachine, ToolError
from fabricd.doctor.tree import Tree

REPO = Path(__file__).resolve().parents[4]


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "root", "mlx5_roce")


@pytest.fixture
def built(native):
    library = native("nccl_plugin/libnccl-net-fabric.so")
    if b"__asan_init" in library.read_bytes() or b"__tsan_init" in library.read_bytes():
        pytest.skip("a sanitizer's library needs its runtime")
    return library


def test_the_built_library_says_its_release_and_the_wire_that_it_speaks(built):
    """Nothing refers to the mark, so the linker dropped it once: `retain` keeps it."""
    found = plugin.library(Tree(), ThisMachine(), built, {})
    header = (REPO / "nccl_plugin/host/wire.h").read_text()
    wire = {n: int(v) for n, v in re.findall(r"(kWireVersion\w*) = (\d+);", header)}
    assert found.problem == ""
    assert (found.release, found.wire_min, found.wire_max) == (
        __version__, wire["kWireVersionMin"], wire["kWireVersion"],
    )  # fmt: skip
    assert found.tables == (8, 9, 10, 11, 12)
    assert found.sha256 == hashlib.sha256(built.read_bytes()).hexdigest()
    needed = re.findall(
        r"GLIBC_(\d+)\.(\d+)",
        subprocess.run(["readelf", "-V", built], capture_output=True, text=True, check=True).stdout,
    )
    assert found.glibc == "{}.{}".format(*max((int(a), int(b)) for a, b in needed))


def test_what_is_no_elf_does_not_load(tmp_path):
    path = tmp_path / "libnccl-net-fabric.so"
    path.write_bytes(PLUGIN)
    found = plugin.library(Tree(), ThisMachine(), path, {})
    assert "does not load" in found.problem
    assert found.release == "0.1.0", "what its bytes say is known all the same"


def test_another_library_is_no_plugin():
    found = plugin.library(Tree(), ThisMachine(), next(Path("/lib").glob("*/libm.so.6")), {})
    assert "is no NCCL network plugin" in found.problem


def test_a_library_that_crashes_takes_the_child_alone(tmp_path):
    source = tmp_path / "crash.c"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }\n"
    )
    library = tmp_path / "libcrash.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    found = plugin.library(Tree(), ThisMachine(), library, {})
    assert "was killed by signal 6" in found.problem


def test_a_library_that_prints_spoils_no_answer(tmp_path):
    source = tmp_path / "talk.c"
    source.write_text(
        "#include <unistd.h>\n__attribute__((constructor)) static void f(void) "
        '{ if (write(1, "[1]", 3)) {} }\n'
    )
    library = tmp_path / "libtalk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    answer = ThisMachine().child(plugin.CHILD, str(library))
    assert answer == {"error": "", "tables": [], "name": ""}


def test_the_plugin_of_the_environment_is_looked_at_first(host):
    host.library = ""
    path = "/srv/libnccl-net-fabric.so"
    host.write(path, PLUGIN.replace(b"0.1.0", b"0.9.9"))
    found = plugin.library(
        Tree(host.root), host.machine, None, {"NCCL_NET_PLUGIN": f"{path},other"}
    )
    assert (found.path, found.release, found.transports) == (path, "0.9.9", ("tcp", "verbs"))


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        (lambda h: h.path(h.library).unlink(), Severity.WARNING, "no plugin library; looked for"),
        (lambda h: h.write(h.library, PLUGIN.replace(b"0.1.0", b"9.9.9")), Severity.WARNING,
         f"is release 9.9.9; this program is {__version__}"),
        (lambda h: h.write(h.library, b"\x7fELF stripped"), Severity.WARNING, "its release"),
        (lambda h: h.write(h.library, PLUGIN.replace(b"tcp verbs", b"tcp" + bytes(6))),
         Severity.NOTE, "carries tcp alone"),
    ],
)  # fmt: skip
def test_a_library_that_does_not_fit(host, change, severity, words):
    change(host)
    (finding,) = host.findings("plugin")
    assert words in finding.seen
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": "x.so: version `GLIBC_2.17' not found", "tables": []}, "does not load"),
        ({"error": "", "tables": [], "name": ""}, "has no table"),
        ({"error": "", "tables": [8], "name": "AWS Libfabric"}, "another plugin, 'AWS Libfabric'"),
        (ToolError("python did not end within 30 s"), "cannot be loaded: python did not end"),
    ],
)
def test_a_library_that_cannot_be_used_is_critical(host, answer, words):
    host.machine.children["fabricd.doctor.plugin_load"] = answer
    (finding,) = host.findings("plugin")
    assert words in finding.seen
    assert finding.severity is Severity.CRITICAL
    assert ("older than the glibc" in finding.action) == ("GLIBC" in str(answer))


def test_a_sound_library_is_no_finding(host):
    assert seen(host.findings("plugin")) == []


@given(st.binary(max_size=200))
def test_any_bytes_are_described(data):
    found = plugin.described("/x", b"\0fabricd libnccl-net-fabric " + data + b"\0GLIBC_" + data)
    assert 0 <= found.wire_min <= 999
