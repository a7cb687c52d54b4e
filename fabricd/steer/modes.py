"""Modes: what the daemon may do. ``observe`` < ``steer`` < ``migrate``.

The first line of ``$STATE/mode`` is the host's promoted mode. A group of links may have one of its
own (``group NAME MODE`` lines): so a part of a host is steered first while the rest observes. A
mode given to the host is given to all its groups. While the stop file exists everything observes,
whatever was promoted; when it is removed the promoted modes are back.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from telemetry.service import durable

MAX_BYTES = 1024 * 1024
"""Of the mode file: a line for each group of links."""


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
    """The promoted and the effective modes of this host and of its groups of links.

    Attributes:
        promoted: the host's, for all links whose group has none of its own.
        groups: group → its own promoted mode.
        stopped: the stop file exists.
    """

    def __init__(self, mode_file: Path, stop_file: Path) -> None:
        self._mode_file = mode_file
        self._stop_file = stop_file
        self.groups: dict[str, Mode] = {}
        self.promoted = Mode.OBSERVE
        self._read()
        self.stopped = False
        self.check_stop()

    @property
    def effective(self) -> Mode:
        """What may be done now on links whose group has no mode of its own."""
        return Mode.OBSERVE if self.stopped else self.promoted

    @property
    def highest(self) -> Mode:
        """What may be done now on some link."""
        return Mode.OBSERVE if self.stopped else max([self.promoted, *self.groups.values()])

    def of(self, group: str) -> Mode:
        """What may be done now on the links of a group ("": of none)."""
        return Mode.OBSERVE if self.stopped else self.groups.get(group, self.promoted)

    def check_stop(self) -> bool:
        """Look at the stop file; True when the effective mode changed.

        A stop file that cannot be looked at counts as there: somebody wanted to say something.
        """
        before = self.highest
        try:
            self._stop_file.lstat()
            self.stopped = True
        except (FileNotFoundError, NotADirectoryError):
            self.stopped = False
        except OSError:
            self.stopped = True
        return self.highest != before

    def retarget(self, stop_file: Path) -> None:
        """Watch another stop file (after a reload)."""
        self._stop_file = stop_file

    def promote(self, mode: Mode, group: str = "") -> None:
        """Raise or lower the mode of the host and all its groups, or of one group; durably.

        Raises:
            ValueError: migrate is not built yet.
            OSError: not stored; the mode is unchanged.
        """
        if mode is Mode.MIGRATE:
            raise ValueError(
                "mode migrate needs escalation, which this version does not have; "
                "allowed: observe, steer"
            )
        promoted = self.promoted if group else mode
        groups = self.groups | {group: mode} if group else {}
        groups = {name: own for name, own in groups.items() if own != promoted}
        lines = [promoted.name.lower()]
        lines += [f"group {name} {own.name.lower()}" for name, own in sorted(groups.items())]
        durable.replace_text(self._mode_file, "\n".join(lines) + "\n")
        self.promoted, self.groups = promoted, groups

    def _read(self) -> None:
        """Take the stored modes; observe when there are none, or one makes no sense."""
        try:
            first, *rest = durable.require_text(self._mode_file, MAX_BYTES, "ascii").splitlines()
            promoted = min(Mode.parse(first), Mode.STEER)
            groups = {}
            for line in rest:
                word, name, mode = line.split(" ")
                if word != "group":
                    raise ValueError(line)
                groups[name] = min(Mode.parse(mode), Mode.STEER)
        except (OSError, ValueError):
            return
        self.promoted, self.groups = promoted, groups
