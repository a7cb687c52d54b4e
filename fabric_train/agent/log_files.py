"""Files with the output of processes, written by a thread of their own.

A disk that is full, broken or slow never stops who writes: what cannot be written is dropped,
counted, and said. The thread tries again with each later piece, for room may come back.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

MOST_WAITING = 16 << 20
"""Bytes that wait for the disk; more are dropped."""
_CLOSE_S = 10.0
_SAY_AGAIN_S = 60.0


class LogFiles:
    """Files below ``directory``. ``report`` gets lines for people, from any thread."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        self.directory = directory
        self._report = report
        self._jobs: deque[tuple[Callable[[], int], int]] = deque()
        self._waiting = 0
        self._missing = 0
        self._said_at = -math.inf
        self._changed = threading.Condition()
        self._closed = False
        self._files: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="fabric-logs", daemon=True)
        self._thread.start()

    def write(self, name: str, data: bytes) -> None:
        """Append ``data`` to the file ``name``; from any thread, at once."""
        self._put(lambda: self._append(name, data), len(data))

    def link(self, name: str, to: str) -> None:
        """Let ``name`` point to the directory ``to`` from now on."""
        self._put(lambda: self._point(name, to), 0)

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """Write all that waits, for ``limit_s`` at most, and say what is missing."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(limit_s)
        with self._changed:
            lost = self._missing + self._waiting
        if lost:
            self._report(f"{self.directory}: {lost} bytes of output are missing there")

    def _put(self, work: Callable[[], int], size: int) -> None:
        with self._changed:
            if self._waiting + size > MOST_WAITING:
                self._missing += size
                return
            self._waiting += size
            self._jobs.append((work, size))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    break
                work, size = self._jobs.popleft()
            try:
                missing = work()
            except OSError as error:
                missing = size
                self._say_trouble(error)
            with self._changed:
                self._waiting -= size
                self._missing += missing
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.close(file)

    def _say_trouble(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._said_at > _SAY_AGAIN_S:
            self._said_at = now
            self._report(
                f"{self.directory}: {error.strerror or error}: output is missing there until that "
                "ends; the job goes on"
            )

    def _append(self, name: str, data: bytes) -> int:
        """Bytes that are missing. Raises ``OSError`` where all of them are."""
        file = self._files.get(name)
        if file is None:
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = self._files[name] = os.open(path, flags, 0o640)
        left = data
        while left:
            try:
                left = left[os.write(file, left) :]
            except OSError as error:
                if left is data:
                    raise
                self._say_trouble(error)
                return len(left)
        return 0

    def _point(self, name: str, to: str) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        new = self.directory / f".{name}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(to)
        new.rename(self.directory / name)
        return 0
