"""Reads ``/proc/net/dev`` for `fabricd.detect.progress`.

Costs some 20 µs where there are few devices, twice a second and while probes are missing. It takes
no lock that a driver or another process may hold for long, as netlink does. Where it cannot be read
no verdict waits for payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fabricd.detect.progress import MOST_TEXT, Reading, parse
from fabricd.procfs.file import ProcFile

NET_DEV = Path("/proc/net/dev")


class NetdevBytes(ProcFile[Reading]):
    """Byte counters of the network namespace that this process is in when it opens the file."""

    def __init__(self, names: Callable[[], Sequence[str]], path: Path = NET_DEV) -> None:
        """Args: ``names``: of the netdevs that are wanted, asked at each reading."""

        def reading(data: bytes) -> Reading:
            counts = parse(data, names())
            return Reading(time.monotonic_ns(), counts)

        super().__init__(
            path, reading, most_bytes=MOST_TEXT, without="verdicts do not wait for payload"
        )
