"""RLIMIT_MEMLOCK of this process, of training jobs that run, and of the units that start jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fabricd.doctor.facts import MemlockLimit
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree

LAUNCHERS = ("slurmd", "containerd", "docker", "crio", "kubelet", "k3s", "pbs")
"""Units below which jobs start: a job inherits their limits."""
_IPC_LOCK = 1 << 14  # CAP_IPC_LOCK
_ALL_IDS = 4294967295


def memlock(tree: Tree, machine: Machine, jobs: Sequence[int]) -> tuple[MemlockLimit, ...]:
    """All limits that can be read.

    Args:
        tree: where files are read.
        machine: what asks systemd.
        jobs: processes that run NCCL.
    """
    found = own_limit(tree)
    for pid in jobs:
        name = tree.text(f"proc/{pid}/comm") or "?"
        limit = _process(tree, str(pid), f"process {pid} ({name})", job=True)
        found += [] if limit is None else [limit]
    found += _units(tree, machine)
    return tuple(found)


def own_limit(tree: Tree) -> list[MemlockLimit]:
    """This process's, which it inherited from the shell or the job; none when it is unknown."""
    own = _process(tree, "self", "this shell", job=False)
    return [] if own is None else [own]


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
            tree.note_unexamined(
                f"RLIMIT_MEMLOCK of {whose}", f"proc/{pid}/limits says nothing of it"
            )
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


def _units(tree: Tree, machine: Machine) -> list[MemlockLimit]:
    argv = ["systemctl", "show", "--no-pager", "--property=Id,LoadState,LimitMEMLOCKSoft"]
    try:
        text = machine.run([*argv, *(f"{name}.service" for name in LAUNCHERS)])
    except ToolError as error:
        tree.note_unexamined("RLIMIT_MEMLOCK of systemd units", str(error))
        return []
    found = []
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        limit = values.get("LimitMEMLOCKSoft", "")
        if values.get("LoadState") == "loaded" and (limit == "infinity" or limit.isdecimal()):
            number = None if limit == "infinity" or int(limit) >= 1 << 63 else int(limit)
            found.append(MemlockLimit(f"unit {values.get('Id', '?')}", number))
    return found
