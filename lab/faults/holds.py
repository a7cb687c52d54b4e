"""Who holds which port down: faults that overlap must not end each other.

A port is up when nobody holds it. The table is one small file per lab, shared by all processes that
inject faults; a row per port, a slot per holder (pid, start time, serial number). Everything is
done under ``flock``, together with the change of the link itself, so that table and link agree.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lab.lifecycle.procs import ProcessId

SLOTS = 12
_SLOT = struct.Struct("=III")
ROW = SLOTS * _SLOT.size
_WORDS = struct.Struct(f"={3 * SLOTS}I")


class Holder(NamedTuple):
    """One fault of one process."""

    pid: int
    start: int
    serial: int

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        now = ProcessId.of(self.pid)
        return now is not None and now.start & 0xFFFFFFFF == self.start


class HoldTable:
    """The table of one lab. Rows that were never written read as empty."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the file; holds stay."""
        os.close(self._fd)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all other holders; not re-entrant."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def holders(self, row: int) -> list[Holder]:
        """Holders of a port, living or not."""
        data = os.pread(self._fd, ROW, row * ROW).ljust(ROW, b"\0")
        words = _WORDS.unpack(data)
        return [Holder(*words[i : i + 3]) for i in range(0, len(words), 3) if words[i]]

    def take(self, row: int, holder: Holder) -> bool:
        """Add a hold; whether it is the first, so that the port is to go down.

        Raises:
            OSError: all slots are taken.
        """
        held = self.holders(row)
        if holder in held:
            return False
        if len(held) == SLOTS:
            raise OSError(f"port {row} is held down by {SLOTS} faults already")
        self._write(row, [*held, holder])
        return not held

    def release(self, row: int, holder: Holder) -> bool:
        """Drop a hold; whether it was the last, so that the port is to come up."""
        held = self.holders(row)
        if holder not in held:
            return False
        held.remove(holder)
        self._write(row, held)
        return not held

    def reap(self, row: int) -> bool:
        """Drop holds of processes that are gone; whether the port is to come up."""
        held = self.holders(row)
        living = [h for h in held if h.alive]
        if len(living) == len(held):
            return False
        self._write(row, living)
        return not living

    def _write(self, row: int, held: list[Holder]) -> None:
        data = b"".join(_SLOT.pack(*h) for h in held)
        os.pwrite(self._fd, data.ljust(ROW, b"\0"), row * ROW)
