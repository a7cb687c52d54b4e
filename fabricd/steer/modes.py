"""Modes: what the daemon may do. ``observe`` < ``steer`` < ``migrate``.

The promoted mode is one word in ``$STATE/mode``. While the stop file exists the host observes,
whatever was promoted; when it is removed the promoted mode is back.
"""

from __future__ import annotations

import contextlib
import os
from enum import IntEnum
from pathlib import Path


class Mode(IntEnum):
    """The numbers are those of the steer page."""

    OBSERVE = 0
    STEER = 1
    MIGRATE = 2

    @classmethod
    def parse(cls, text: str) -> Mode:
        """By lower-case name.

        Raises:
            ValueError: says what is allowed.
        """
        try:
            return cls[text.strip().upper()]
        except KeyError:
            raise ValueError(f'mode "{text[:32]}"; allowed: observe, steer, migrate') from None


class Modes:
    """The promoted and the effective mode of this host."""

    def __init__(self, mode_file: Path, stop_file: Path) -> None:
        self._mode_file = mode_file
        self._stop_file = stop_file
        self.promoted = self._read()
        self.stopped = False
        self.check_stop()

    @property
    def effective(self) -> Mode:
        """What may be done now."""
        return Mode.OBSERVE if self.stopped else self.promoted

    def check_stop(self) -> bool:
        """Look at the stop file; True when the effective mode changed.

        A stop file that cannot be looked at counts as there: somebody wanted to say something.
        """
        before = self.effective
        try:
            self._stop_file.lstat()
            self.stopped = True
        except (FileNotFoundError, NotADirectoryError):
            self.stopped = False
        except OSError:
            self.stopped = True
        return self.effective != before

    def retarget(self, stop_file: Path) -> None:
        """Watch another stop file (after a reload)."""
        self._stop_file = stop_file

    def promote(self, mode: Mode) -> None:
        """Raise or lower the mode, durably.

        Raises:
            ValueError: migrate is not built yet.
            OSError: not stored; the mode is unchanged.
        """
        if mode is Mode.MIGRATE:
            raise ValueError(
                "mode migrate needs escalation, which this version does not have; "
                "allowed: observe, steer"
            )
        temporary = self._mode_file.with_name(f".{self._mode_file.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="ascii") as file:
                file.write(f"{mode.name.lower()}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._mode_file)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self.promoted = mode

    def _read(self) -> Mode:
        """The stored mode; observe when there is none or it makes no sense."""
        try:
            mode = Mode.parse(self._mode_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return Mode.OBSERVE
        return min(mode, Mode.STEER)
