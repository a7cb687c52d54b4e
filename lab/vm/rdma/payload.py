"""Puts plugin and fabric-perf of a build directory into a running guest.

They are stripped on the way. Libraries that a sanitizer's build needs and Debian's image lacks go
along, so an ASan build runs like any other.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from lab.lifecycle.registry import LabError
from lab.vm.machine import Vm

ROOT = "/opt/fabric"
PERF = f"{ROOT}/fabric-perf"
PLUGIN = f"{ROOT}/libnccl-net-fabric.so"
PLAIN = f"{ROOT}/libnccl-net-plain.so"
LOADER = {"LD_LIBRARY_PATH": ROOT}
FILES = ("fabric-perf", "libnccl-net-fabric.so", "libnccl-net-plain.so")
_SANITIZERS = re.compile(r"^\s*lib(?:asan|ubsan|tsan)\S* => (\S+)", re.MULTILINE)


def libraries(ldd: str) -> list[Path]:
    """Paths of the sanitizers' libraries in what ``ldd`` prints. Pure."""
    return [Path(path) for path in _SANITIZERS.findall(ldd)]


def files(build: Path) -> list[Path]:
    """What belongs into the guest from a build directory.

    Raises:
        LabError: something is not built.
    """
    found = [build / "nccl_plugin" / name for name in FILES]
    for path in found:
        if not path.exists():
            raise LabError(f"no {path}; build it: ./run build {build.name}")
    needed: set[Path] = set()
    for path in found:
        done = subprocess.run(["ldd", path], capture_output=True, text=True, check=True)
        needed.update(libraries(done.stdout))
    return [*found, *sorted(needed)]


def put(vm: Vm, path: Path) -> None:
    """Copy one program or library, stripped, to `ROOT` of the guest."""
    with tempfile.TemporaryDirectory() as scratch:
        stripped = Path(scratch) / path.name
        subprocess.run(["strip", "-o", stripped, path], check=True)
        data = stripped.read_bytes()
    # Beside its name and renamed: what runs keeps the file that it has mapped.
    vm.write(f"{ROOT}/.{path.name}", data, 0o755)
    vm.run("mv", f"{ROOT}/.{path.name}", f"{ROOT}/{path.name}").check()


def push(vm: Vm, build: Path) -> None:
    """Copy `FILES` of a build directory to the guest.

    Raises:
        LabError: something is not built.
    """
    for path in files(build):
        put(vm, path)
