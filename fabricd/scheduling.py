"""Being scheduled soon on a machine whose cores all compute.

A daemon that runs for half a millisecond now and then needs no real-time priority, which a bug of
its own would turn against the training. Since Linux 6.12 a task may ask for a shorter time slice
(sched_setattr(2) with ``sched_runtime`` for SCHED_OTHER), and one that wakes with a shorter slice
than the running one's runs at once; its share of the CPU is the same. Older kernels ignore it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE_NS = 100_000
"""The shortest that the kernel takes."""
_NUMBERS = {"x86_64": 314, "aarch64": 274}
"""Of sched_setattr(2); glibc has no function for it before 2.41."""
_ATTR = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime, deadline, period."""


def ask_for_short_slice(slice_ns: int = SLICE_NS) -> str:
    """Ask for it, for the calling thread; returns what was wrong, empty: nothing."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        return f"not known how on {platform.machine()}"
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _ATTR.pack(_ATTR.size, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), 0, ctypes.c_char_p(attr), 0) == 0:
        return ""
    return os.strerror(ctypes.get_errno())
