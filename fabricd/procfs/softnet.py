"""Reads ``/proc/net/softnet_stat`` for `fabricd.detect.receive_path`.

Costs two reads of an open file, about 10 µs where there are few CPUs, and only when a verdict is
due. Where it cannot be read no verdict waits for the receive path.
"""

from __future__ import annotations

import time
from pathlib import Path

from fabricd.detect.receive_path import Reading, parse
from fabricd.procfs.file import ProcFile

SOFTNET_STAT = Path("/proc/net/softnet_stat")
MOST_BYTES = 4 << 20
"""More than 8192 CPUs, the most that Linux is built for, have lines."""


class SoftnetStat(ProcFile[Reading]):
    """All backlogs."""

    def __init__(self, path: Path = SOFTNET_STAT) -> None:
        super().__init__(
            path, _reading, most_bytes=MOST_BYTES,
            without="verdicts do not wait for the kernel's receive path",
        )  # fmt: skip


def _reading(data: bytes) -> Reading:
    queues = parse(data)
    return Reading(time.monotonic_ns(), queues)
