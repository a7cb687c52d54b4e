"""CPUs for the daemon and its prober, away from the cores of the training job.

``[host] cpus`` is a list such as ``0-1,8``, or ``housekeeping``: the CPUs that the kernel does not
keep for others (``isolcpus``, ``nohz_full``). "" leaves the affinity to systemd (CPUAffinity=) or
whoever started us.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

HOUSEKEEPING = "housekeeping"
MAX_CPU = 4095
_RESERVED = ("isolated", "nohz_full")
_SYSFS = Path("/sys/devices/system/cpu")


def parse_cpus(text: str) -> set[int] | None:
    """``"0-1,8"`` as {0, 1, 8}; None for "" and ``housekeeping``.

    Raises:
        ValueError: none of these.
    """
    if text in ("", HOUSEKEEPING):
        return None
    out: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if not match:
            raise ValueError(f'"{part[:32]}" is not a CPU or a range of CPUs')
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= MAX_CPU:
            raise ValueError(f"CPUs {first} to {last}")
        out.update(range(first, last + 1))
    return out


def kernel_list(text: str) -> set[int]:
    """A list as the kernel writes it; "" and "(null)" are empty."""
    text = text.strip()
    return set() if text in ("", "(null)") else parse_cpus(text) or set()


def housekeeping(sysfs: Path = _SYSFS) -> set[int]:
    """CPUs online that the kernel does not keep for others; empty: cannot be told."""
    try:
        left = kernel_list((sysfs / "online").read_text())
    except (OSError, ValueError):
        return set()
    for name in _RESERVED:
        with contextlib.suppress(OSError, ValueError):
            left -= kernel_list((sysfs / name).read_text())
    return left


def wanted(text: str, sysfs: Path = _SYSFS) -> set[int] | None:
    """The CPUs that ``[host] cpus`` means on this machine; None: leave them alone."""
    if text == HOUSEKEEPING:
        return housekeeping(sysfs) or None
    return parse_cpus(text)


def pin(pid: int, cpus: set[int]) -> None:
    """Put all threads of a process on these CPUs (0: this process).

    Raises:
        OSError: none of them exists or may be used (EINVAL), it is another user's, or it is gone.
    """
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    threads = [int(name.name) for name in tasks.iterdir()]
    for number, thread in enumerate(sorted(threads)):
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            if number == 0:
                raise


def is_prober(pid: int) -> bool:
    """Whether a pid is a prober's: it comes out of a file, and must not hit anybody else."""
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return False
    return comm == "fabric-prober"
