"""The lines with which a job uses the plugin: ``fabricctl plugin env``."""

from __future__ import annotations

import ctypes
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libnccl-net-fabric.so"
FORMATS = ("sh", "slurm", "k8s", "docker", "json")
MOST_JOB = 63
"""Characters of a job's name in a stats page: of a longer one the rest is cut off there, so that
``fabricctl explain job`` knows no such job, and two that begin alike are one."""


class PluginError(Exception):
    """There is no library to name, it does not load, or the job's name cannot be shown."""


@dataclass(frozen=True, slots=True)
class Mount:
    """What a container must see, at the same path."""

    path: str
    read_only: bool


def candidates() -> list[Path]:
    """Where the library may be: installed with this program, else built in its source tree."""
    source = Path(__file__).resolve().parents[2]
    return [
        Path(sys.prefix) / "lib" / LIBRARY,
        source / "build" / "release" / "nccl_plugin" / LIBRARY,
    ]


def find_library(named: Path | None = None) -> Path:
    """The library's absolute path, after a test load.

    Raises:
        PluginError: there is none, or it does not load, or it is something else.
    """
    places = [named] if named is not None else candidates()
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        looked = ", ".join(str(place) for place in places)
        raise PluginError(f"no plugin library; looked for {looked} (--library names another)")
    path = found.absolute()  # Not resolved: what an upgrade replaces stays named.
    try:
        table = hasattr(ctypes.CDLL(str(path)), "ncclNetPlugin_v11")
    except OSError as error:
        raise PluginError(f"{path} does not load: {error}") from error
    if not table:
        raise PluginError(f"{path} is no NCCL network plugin: it has no ncclNetPlugin_v11")
    return path


def variables(library: Path, run_dir: Path, *, by_name: bool, job: str = "") -> dict[str, str]:
    """Environment variables of a job.

    Args:
        library: as `find_library` gave it.
        run_dir: the daemon's.
        by_name: NCCL takes no path (before 2.19) or RCCL looks for its own name: name and
            search path instead.
        job: the name under which ``fabricctl top`` shows it; empty: the process's.

    Raises:
        PluginError: the name does not fit into a stats page as it is.
    """
    if len(job) > MOST_JOB or not (job.isascii() and job.isprintable()):
        raise PluginError(
            f"--job {job[:80]!r}: a stats page has room for {MOST_JOB} printable ASCII characters"
        )
    env = {"NCCL_NET_PLUGIN": "fabric" if by_name else str(library)}
    if by_name:
        env["LD_LIBRARY_PATH"] = str(library.parent)
    env["FABRIC_RUN_DIR"] = str(run_dir)
    if job:
        env["FABRIC_JOB"] = job
    return env


def mounts(library: Path, run_dir: Path) -> list[Mount]:
    """Directories, not files: pages and libraries are renamed into place."""
    return [Mount(str(library.parent), read_only=True), Mount(str(run_dir), read_only=False)]


def render(form: str, env: Mapping[str, str], wanted: list[Mount]) -> str:
    """The text to print.

    Args:
        form: one of `FORMATS`.
        env: as `variables`.
        wanted: as `mounts`.
    """
    if form == "json":
        places = [{"path": mount.path, "read_only": mount.read_only} for mount in wanted]
        return json.dumps({"env": dict(env), "mounts": places}, indent=2) + "\n"
    return {"sh": _sh, "slurm": _slurm, "k8s": _k8s, "docker": _docker}[form](env, wanted)


def _sh(env: Mapping[str, str], _wanted: list[Mount]) -> str:
    lines = []
    for name, value in env.items():
        behind = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" if name == "LD_LIBRARY_PATH" else ""
        lines.append(f"export {name}={shlex.quote(value)}{behind}\n")
    return "".join(lines)


def _slurm(env: Mapping[str, str], wanted: list[Mount]) -> str:
    places = ",".join(f"{m.path}:{m.path}" + (":ro" if m.read_only else "") for m in wanted)
    return (
        "# In the batch script, before srun; in a container (pyxis) srun also needs\n"
        f"#   --container-mounts={places}\n" + _sh(env, wanted)
    )


def _docker(env: Mapping[str, str], wanted: list[Mount]) -> str:
    parts = ["--network host"]
    parts += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in env.items()]
    for mount in wanted:
        place = f"{mount.path}:{mount.path}" + (":ro" if mount.read_only else "")
        parts.append(f"-v {shlex.quote(place)}")
    return " \\\n".join(parts) + "\n"


def _k8s(env: Mapping[str, str], wanted: list[Mount]) -> str:
    """Under ``spec:`` of a pod. JSON strings are YAML strings."""
    lines = ["hostNetwork: true", "containers:", "  - name: train", "    env:"]
    lines += [
        f"      - {{ name: {name}, value: {json.dumps(value)} }}" for name, value in env.items()
    ]
    lines.append("    volumeMounts:")
    names = ["fabricd-lib", "fabricd-run"]
    for name, mount in zip(names, wanted, strict=True):
        more = "readOnly: true" if mount.read_only else "mountPropagation: HostToContainer"
        lines.append(f"      - {{ name: {name}, mountPath: {json.dumps(mount.path)}, {more} }}")
    lines.append("volumes:")
    for name, mount in zip(names, wanted, strict=True):
        path = f"{{ path: {json.dumps(mount.path)}, type: Directory }}"
        lines.append(f"  - {{ name: {name}, hostPath: {path} }}")
    return "\n".join(lines) + "\n"
