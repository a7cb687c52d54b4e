"""A child process: which processes run NCCL, and the variables of some. Prints one JSON object.

``python -m fabricd.doctor.process_scan ROOT [PID…]`` prints ``jobs`` (pids that have NCCL or the
plugin loaded), ``closed`` (how many processes may not be looked at), and ``environments``: PID →
``variables``, or ``error``.

Reading maps or environ of a process waits for its memory map's lock, which a process that hangs in
a driver may hold for ever. So a child does it, which can be killed while it waits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fabricd.doctor.tree import Tree, why

PREFIXES = ("NCCL_", "FABRIC_", "RCCL_")
OTHERS = frozenset({"LD_LIBRARY_PATH", "HOME"})
"""Variables that say where NCCL's files and libraries lie."""
_LIBRARIES = (b"libnccl-net-fabric.so", b"libnccl.so", b"librccl.so")
_MAX_MAPS = 512 * 1024 * 1024
"""4 million mappings; libraries are the last ones, at high addresses."""
_MAX_ENVIRON = 4 * 1024 * 1024


def scan(tree: Tree, pids: list[int]) -> dict[str, Any]:
    """What the child prints.

    Args:
        tree: with ``proc``.
        pids: processes whose variables are wanted.
    """
    jobs, closed = _jobs(tree)
    return {
        "jobs": jobs,
        "closed": closed,
        "environments": {str(pid): _environment(tree, pid) for pid in pids},
    }


def parse_environ(data: bytes) -> dict[str, str]:
    """The variables of /proc/PID/environ; the first of a name counts, as for getenv."""
    found: dict[str, str] = {}
    for part in data.split(b"\0"):
        name, separator, value = part.partition(b"=")
        if separator:
            text = value.decode("utf-8", "replace")
            found.setdefault(name.decode("utf-8", "replace"), text)
    return found


def wanted(variables: dict[str, str]) -> dict[str, str]:
    """Those that concern NCCL; others, which may hold secrets, are not passed on."""
    return {k: v for k, v in variables.items() if k.startswith(PREFIXES) or k in OTHERS}


def _jobs(tree: Tree) -> tuple[list[int], int]:
    found = []
    closed = 0
    for pid in sorted(int(name) for name in tree.names("proc") if name.isdecimal()):
        try:
            uses = tree.has_any(f"proc/{pid}/maps", _LIBRARIES, _MAX_MAPS)
        except PermissionError:
            closed += 1
        except OSError:
            continue  # it ended meanwhile
        else:
            if uses:
                found.append(pid)
    return found, closed


def _environment(tree: Tree, pid: int) -> dict[str, Any]:
    try:
        data = tree.data(f"proc/{pid}/environ", _MAX_ENVIRON)
    except OSError as error:
        return {"error": why(error)}
    return {"variables": wanted(parse_environ(data))}


if __name__ == "__main__":
    json.dump(scan(Tree(Path(sys.argv[1])), [int(pid) for pid in sys.argv[2:]]), sys.stdout)
