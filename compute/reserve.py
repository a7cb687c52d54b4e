"""Space on the disk of a fabric-compute that its decisions have when others have filled it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BYTES = 8 << 20
ROOM = 4
"""It is made, or made again, where the disk has so many times its size free."""


class Reserve:
    """A file of ``BYTES`` beside a database, for nothing but to be given back.

    Attributes:
        held: it is there. While it is not, only decisions are stored.
    """

    def __init__(self, path: Path, size: int = BYTES) -> None:
        self._path, self._size = path, size
        self.held = False

    def take(self) -> bool:
        """Make it where the disk has room; returns ``held``."""
        if not self.held:
            with contextlib.suppress(OSError):
                self.held = self._made()
        return self.held

    def _made(self) -> bool:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(self._path, flags)
        except FileNotFoundError:
            file = os.open(self._path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            room = os.fstatvfs(file)
            if os.fstat(file).st_size < self._size:
                if room.f_bavail * room.f_frsize < ROOM * self._size:
                    return False
                os.posix_fallocate(file, 0, self._size)
            return True
        finally:
            os.close(file)

    def give_back(self) -> bool:
        """The disk is full; True: there is more room now."""
        was, self.held = self.held, False
        try:
            self._path.unlink()
        except OSError:
            return False
        return was
