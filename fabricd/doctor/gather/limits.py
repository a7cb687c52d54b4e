"""RLIMIT_MEMLOCK of this process, of training jobs that run, and of the units that start jobs."""

from __future__ import annotations

from fabricd.doctor.facts import MemlockLimit
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree

LAUNCHERS = ("slurmd", "containerd", "docker", "crio", "kubelet", "k3s", "pbs")
"""Units below which jobs start: a job inherits their limits."""
_LIBRARIES = ("libnccl-net-fabric.so", "libnccl.so", "librccl.so")
_IPC_LOCK = 1 << 14  # CAP_IPC_LOCK
_ALL_IDS = 4294967295
MAX_MAPS = 8 * 1024 * 1024


def memlock(tree: Tree, machine: Machine) -> tuple[MemlockLimit, ...]:
    """All limits that can be read; jobs of other users are closed to us unless we are root."""
    found = []
    if (own := _process(tree, "self", "this shell", job=False)) is not None:
        found.append(own)
    found += _jobs(tree)
    found += _units(tree, machine)
    return tuple(found)


def locked_limit(limits: str) -> int | None:
    """The soft limit of ``Max locked memory`` in /proc/PID/limits, bytes; None: unlimited.

    Raises:
        ValueError: there is no such line.
    """
    for line in limits.splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[0]
            return None if soft == "unlimited" else int(soft)
    raise ValueError("no line 'Max locked memory'")


def _process(tree: Tree, pid: str, whose: str, *, job: bool) -> MemlockLimit | None:
    text = tree.text(f"proc/{pid}/limits")
    try:
        limit = locked_limit(text or "")
    except (ValueError, IndexError):
        if not job:
            tree.unexamine(f"RLIMIT_MEMLOCK of {whose}", f"proc/{pid}/limits says nothing of it")
        return None
    return MemlockLimit(whose, limit, exempt=_exempt(tree, pid), job=job)


def _exempt(tree: Tree, pid: str) -> bool:
    """Whether the process may lock any amount: the kernel asks for the *initial* user namespace."""
    for line in (tree.text(f"proc/{pid}/status") or "").splitlines():
        if line.startswith("CapEff:"):
            try:
                capable = bool(int(line.split()[1], 16) & _IPC_LOCK)
            except (IndexError, ValueError):
                return False
            ids = (tree.text(f"proc/{pid}/uid_map") or "").split()
            return capable and ids == ["0", "0", str(_ALL_IDS)]
    return False


def _jobs(tree: Tree) -> list[MemlockLimit]:
    found = []
    hidden = 0
    for pid in sorted((x for x in tree.names("proc") if x.isdecimal()), key=int):
        try:
            maps = tree.data(f"proc/{pid}/maps", MAX_MAPS).decode("utf-8", "replace")
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # it ended meanwhile
        if any(library in maps for library in _LIBRARIES):
            name = tree.text(f"proc/{pid}/comm") or "?"
            limit = _process(tree, pid, f"process {pid} ({name})", job=True)
            found += [] if limit is None else [limit]
    if hidden:
        tree.unexamine("training jobs", f"{hidden} processes of other users are closed to us")
    return found


def _units(tree: Tree, machine: Machine) -> list[MemlockLimit]:
    argv = ["systemctl", "show", "--no-pager", "--property=Id,LoadState,LimitMEMLOCKSoft"]
    try:
        text = machine.run([*argv, *(f"{name}.service" for name in LAUNCHERS)])
    except ToolError as error:
        tree.unexamine("RLIMIT_MEMLOCK of systemd units", str(error))
        return []
    found = []
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        limit = values.get("LimitMEMLOCKSoft", "")
        if values.get("LoadState") == "loaded" and (limit == "infinity" or limit.isdecimal()):
            number = None if limit == "infinity" or int(limit) >= 1 << 63 else int(limit)
            found.append(MemlockLimit(f"unit {values.get('Id', '?')}", number))
    return found
