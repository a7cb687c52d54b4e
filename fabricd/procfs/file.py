"""A table of the kernel in ``/proc``, kept open and read anew each time.

A file that is missing, may not be read or is not understood switches the source off, and that is
logged once: what goes by it goes on without.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

T = TypeVar("T")


class ProcFile(Generic[T]):
    """The open file.

    Attributes:
        note: "read", or why it is not.
    """

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], *, most_bytes: int, without: str
    ) -> None:
        """Open it and read it once, so that a file of no use is told of now.

        Args:
            path: the file.
            parse: makes of its whole contents what `read` gives; raises ValueError.
            most_bytes: a longer file is not understood.
            without: for the log, what happens without this source.
        """
        self.note = "read"
        self._path, self._parse, self._most_bytes = path, parse, most_bytes
        self._without = without
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._off(f"{path}: {error.strerror}")
        self.read()

    def read(self) -> T | None:
        """The table as it is now; None: the source is off."""
        if self._fd < 0:
            return None
        try:
            return self._parse(self._whole())
        except OSError as error:
            self._off(f"{self._path.name}: {error.strerror}")
        except ValueError as error:
            self._off(str(error))
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
            if len(data) > self._most_bytes:
                raise ValueError(f"{self._path.name}: too long")
        return data

    def _off(self, why: str) -> None:
        self.close()
        self.note = why
        structlog.get_logger().warning(self._without, reason=why)
