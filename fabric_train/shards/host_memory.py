"""How much memory a process of this host may still take."""

from __future__ import annotations

import contextlib
from pathlib import Path

_GROUP = "sys/fs/cgroup"


def available(root: Path = Path("/")) -> int:
    """Bytes: what the kernel could give without swapping, and what the container's limit leaves.

    ``root``: where proc and sys are: proc(5), cgroups(7). A container sees its own limit of v2.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = next(int(one.split()[1]) * 1024 for one in lines if one.startswith("MemAvailable:"))
    with contextlib.suppress(OSError, ValueError):  # no such limit: "max", or no file
        most = int((root / _GROUP / "memory.max").read_text())
        used = int((root / _GROUP / "memory.current").read_text())
        found = min(found, max(0, most - used))
    return found
