"""What a kernel log says of the kernel's own faults. Pure."""

from __future__ import annotations

import re

_FAULT = re.compile(
    r"BUG:|WARNING: (CPU: \d|\S+:\d+ at )|Oops|general protection fault|Kernel panic"
    r"|refcount_t|list_(add|del) corruption|KASAN|UBSAN|kernel NULL pointer|use-after-free"
    r"|unregister_netdevice: waiting for|blocked for more than \d+ seconds"
    r"|scheduling while atomic|double free|slab-out-of-bounds"
)
# Reports of a virtual CPU that its host did not let run.
_SLOW_HOST = re.compile(r"soft lockup|workqueue lockup|rcu.*(stall|starved)|clocksource|hung_task")


def kernel_faults(log: str) -> list[str]:
    """Lines of ``dmesg`` that report a fault of the kernel, not a slow machine.

    Args:
        log: the output of ``dmesg``, any number of lines.
    """
    return [
        line for line in log.splitlines() if _FAULT.search(line) and not _SLOW_HOST.search(line)
    ]
