"""The library may land in any container: libc alone, no symbol but NCCL's tables, old glibc."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
LIBRARY = "nccl_plugin/libnccl-net-fabric.so"
COLLECTIVES = "nccl_plugin/libfabric-collectives.so"
OF_GLIBC = re.compile(r"(libc|libm|libpthread|libdl|librt|ld-linux[\w-]*)\.so\.\d+")


@pytest.fixture(scope="module")
def built(native):
    """Builds a file that the wheel ships."""

    def path(file):
        found = native(file)
        if b"__asan_init" in found.read_bytes() or b"__tsan_init" in found.read_bytes():
            pytest.skip("a sanitizer's library needs its runtime")
        return found

    return path


@pytest.fixture(scope="module")
def library(built):
    return built(LIBRARY)


@pytest.fixture(params=[LIBRARY, COLLECTIVES], ids=lambda file: Path(file).name)
def shipped(request, built):
    return built(request.param)


def tool(name, *args):
    if shutil.which(name) is None:
        pytest.fail(f"{name} is missing (binutils, which every compiler brings)")
    return subprocess.run(
        [name, *map(str, args)], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_it_needs_glibc_and_nothing_else(shipped):
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", tool("readelf", "-d", shipped))
    assert "libc.so.6" in needed
    assert [name for name in needed if not OF_GLIBC.fullmatch(name)] == []


def symbols(path):
    lines = tool("nm", "-D", "--defined-only", path).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def test_it_shows_nccls_tables_and_our_calls_and_nothing_else(library):
    names = symbols(library)
    tables = {f"ncclNetPlugin_v{version}" for version in range(8, 13)}
    assert names == tables | {"fabricWait_v1", "fabricWake_v1", "fabricCancelSend_v1"}


def test_the_collectives_show_their_c_interface_and_nothing_else(built):
    header = (REPO / "nccl_plugin/collectives/library.h").read_text()
    assert symbols(built(COLLECTIVES)) == set(re.findall(r"\b(fabric_collectives_\w+)\(", header))


def newest_glibc(path):
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", tool("readelf", "-V", path))
    return max((int(major), int(minor)) for major, minor in versions)


def documented_glibc(who):
    text = (REPO / "docs/operate/install.md").read_text()
    found = re.search(rf"{who} glibc (\d+)\.(\d+) or newer", text)
    assert found, "docs/operate/install.md names the glibc that is needed"
    return int(found[1]), int(found[2])


def test_the_glibc_it_needs_is_not_newer_than_the_documented_one(shipped):
    # What an upgrade of the compiler brings in goes to nccl_plugin/src/old_glibc.cpp.
    assert newest_glibc(shipped) <= documented_glibc("The plugin needs")


@pytest.mark.parametrize("program", ["nccl_plugin/fabric-perf", "prober/fabric-prober"])
def test_nor_the_one_that_the_programs_need(built, program):
    assert newest_glibc(built(program)) <= documented_glibc("The wheel's programs need")


@pytest.mark.parametrize("alias", ["librccl-net-fabric.so", "librccl-net.so"])
def test_rccls_names_lead_to_it(library, alias):
    path = library.with_name(alias)
    assert path.resolve() == library.resolve()
    assert hasattr(ctypes.CDLL(str(path)), "ncclNetPlugin_v11")
