"""Reads files of sysfs, procfs and /etc below one root directory, and notes what it cannot read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_CHUNK = 256 * 1024
MAX_BYTES = 1024 * 1024
"""/proc/net/dev of 8,000 interfaces has that."""


class Tree:
    """A directory that holds ``sys``, ``proc``, ``dev`` and ``etc``: the machine's, or a copy.

    Attributes:
        root: the directory.
        unexamined: what could not be looked at → why; gatherers add to it.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """Args: ``root`` is ``/``, or a directory with copies of these trees."""
        self.root = root
        self.unexamined: dict[str, str] = {}

    def path(self, name: str | Path) -> Path:
        """The path of ``name``, which is relative to the root, or absolute and taken to be so."""
        return self.root / str(name).lstrip("/")

    def data(self, name: str | Path, limit: int = MAX_BYTES) -> bytes:
        """At most ``limit`` bytes of a file; never waits for a FIFO.

        Raises:
            OSError: the file is missing or cannot be read.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with open(os.open(self.path(name), flags), "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read(limit)

    def read(self, name: str) -> str:
        """A file's text without white space around it; of one over `MAX_BYTES` the beginning.

        Raises:
            OSError: the file is missing or cannot be read.
        """
        data = self.data(name, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            self.note_unexamined(f"the rest of {name}", f"it has more than {MAX_BYTES} bytes")
        return data[:MAX_BYTES].decode("utf-8", "replace").strip()

    def has_any(self, name: str, words: Sequence[bytes], limit: int) -> bool:
        """Whether one of some words is in a file, which is not kept in memory.

        Args:
            name: of the file.
            words: to look for.
            limit: bytes that are looked at.

        Raises:
            OSError: the file is missing or cannot be read.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        kept = max(map(len, words)) - 1
        data = b""
        with open(os.open(self.path(name), flags), "rb", buffering=0) as file:  # noqa: PTH123
            while limit > 0 and (more := file.read(min(_CHUNK, limit))):
                limit -= len(more)
                data = data[-kept:] + more
                if any(word in data for word in words):
                    return True
        return False

    def text(self, name: str) -> str | None:
        """As `read`; None where that raises."""
        try:
            return self.read(name)
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """A file's decimal number; None when there is no such file or number."""
        text = self.text(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """The sorted entries of a directory; none when it is missing or closed to us."""
        try:
            return sorted(os.listdir(self.path(name)))  # noqa: PTH208 - names are wanted
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory."""
        return self.path(name).exists()

    def link_name(self, name: str) -> str:
        """The last part of a symbolic link's target; empty when there is no such link."""
        try:
            return self.path(name).readlink().name
        except OSError:
            return ""

    def note_unexamined(self, what: str, why: str) -> None:
        """Note that something could not be looked at."""
        self.unexamined.setdefault(what, why)


def why(error: OSError) -> str:
    """An error without numbers and quotes of Python."""
    return error.strerror or str(error)
