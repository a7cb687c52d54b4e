"""Reads ``/proc/net/softnet_stat`` for `fabricd.detect.receive_path`.

Costs two reads of an open file, about 10 µs where there are few CPUs, and only when a verdict is
due. A file that is missing, may not be read or is not understood switches the source off: then no
verdict waits for the receive path.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from fabricd.detect.receive_path import Reading, SoftnetError, parse

SOFTNET_STAT = Path("/proc/net/softnet_stat")
MOST_BYTES = 4 << 20
"""More than 8192 CPUs, the most that Linux is built for, have lines."""


class SoftnetStat:
    """The open file.

    Attributes:
        note: "read", or why it is not.
    """

    def __init__(self, path: Path = SOFTNET_STAT) -> None:
        self.note = "read"
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._off(f"{path}: {error.strerror}")
        self.read()  # An older kernel's file is said to be of no use now, not at the first fault.

    def read(self) -> Reading | None:
        """All backlogs as they are now; None: the source is off."""
        if self._fd < 0:
            return None
        try:
            queues = parse(self._whole())
        except OSError as error:
            self._off(f"softnet_stat: {error.strerror}")
        except SoftnetError as error:
            self._off(str(error))
        else:
            return Reading(time.monotonic_ns(), queues)
        return None

    def close(self) -> None:
        """Release the descriptor; `read` then says None."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _whole(self) -> bytes:
        # The kernel gives whole lines, a page of them at a time.
        data = b""
        while part := os.pread(self._fd, 1 << 16, len(data)):
            data += part
            if len(data) > MOST_BYTES:
                raise SoftnetError("softnet_stat: too long")
        return data

    def _off(self, why: str) -> None:
        self.close()
        self.note = why
        structlog.get_logger().warning(
            "verdicts do not wait for the kernel's receive path", reason=why
        )
